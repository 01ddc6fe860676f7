from assay.core.plugin import Registry

executors: Registry = Registry("executor", __name__)
