"""The mixers and attention methods that run here: some need another package, a GPU or a language model."""

from assay.attention import attention
from assay.mixers import mixers

MIXERS = [name for name in mixers.names() if mixers[name].portable]
METHODS = [name for name in attention.names() if attention[name].portable]
