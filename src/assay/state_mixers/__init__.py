from assay.core.plugin import Registry

state_mixers: Registry = Registry("state mixer", __name__)
