from assay.core.plugin import Registry

sparse_coders: Registry = Registry("sparse coder", __name__)
