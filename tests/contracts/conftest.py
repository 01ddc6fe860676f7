"""The fixtures of a tiny language model."""

from tiny_models import stream as stream
from tiny_models import tiny_model as tiny_model
