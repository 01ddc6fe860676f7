from assay.core.plugin import Registry

studies: Registry = Registry("study", __name__)
