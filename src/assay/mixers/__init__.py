from assay.core.plugin import Registry

mixers: Registry = Registry("mixer", __name__, wraps="assay.mixers.wrapped")
