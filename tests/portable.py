"""The mixers that run here: some need another package and a GPU."""

from assay.mixers import mixers

MIXERS = [name for name in mixers.names() if mixers[name].portable]
