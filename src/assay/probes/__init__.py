from assay.core.plugin import Registry

probes: Registry = Registry("probe", __name__)
