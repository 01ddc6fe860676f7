from assay.core.plugin import Registry

tasks: Registry = Registry("task", __name__)
