"""Every mixer keeps every promise, with and without a short convolution."""

import dataclasses

import pytest

from assay.contracts.base import promises
from assay.mixers import mixers


@pytest.mark.parametrize("promise", promises("mixers"), ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("name", mixers.names())
def test_mixer_keeps(name: str, promise) -> None:
    promise(mixers[name]())


@pytest.mark.parametrize("promise", promises("mixers"), ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("name", mixers.names())
def test_mixer_keeps_behind_a_short_convolution(name: str, promise) -> None:
    promise(dataclasses.replace(mixers[name](), conv=4))
