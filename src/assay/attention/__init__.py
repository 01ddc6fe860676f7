from assay.core.plugin import Registry

attention: Registry = Registry("attention method", __name__)
