from assay.core.plugin import Registry

vectors: Registry = Registry("vector data", __name__)
