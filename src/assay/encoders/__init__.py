from assay.core.plugin import Registry

encoders: Registry = Registry("encoder", __name__)
