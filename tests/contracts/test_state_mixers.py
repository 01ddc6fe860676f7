"""Every state mixer keeps every promise."""

import pytest

from assay.contracts.base import promises
from assay.state_mixers import state_mixers


@pytest.mark.parametrize("promise", promises("state_mixers"), ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("name", state_mixers.names())
def test_state_mixer_keeps(name: str, promise) -> None:
    promise(state_mixers[name]())
