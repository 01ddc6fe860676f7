"""What a model that is here cannot do is said before anything is computed, by a dry run too."""

from collections.abc import Callable
from pathlib import Path

import pytest

from assay.core.errors import UserError
from assay.vectors import vectors

Cli = Callable[..., tuple[int, str, str]]


def test_a_dry_run_refuses_a_context_longer_than_the_models(cli: Cli, tiny: Path, text: Path, tmp_path: Path) -> None:
    words = ("perplexity", "--model", tiny, "--datasets", text, "--dry-run", "--cpu-only", "--out", tmp_path)
    code, out, err = cli(*words, "--context-lengths", "1024")
    assert (code, out) == (2, "") and "Give --context-lengths up to 512." in err and len(err.splitlines()) == 1
    code, out, _ = cli(*words, "--context-lengths", "512")
    assert code == 0 and "not here" not in out


def test_activations_of_a_context_longer_than_the_models_are_refused(tiny: Path) -> None:
    vectors.parse(f"activations:model={tiny}:hook=model.layers.1:context=512").check()
    with pytest.raises(UserError, match=r"Give activations:context up to 512"):
        vectors.parse(f"activations:model={tiny}:hook=model.layers.1:context=1024").check()
    with pytest.raises(UserError, match=r"no module 'model\.layers\.7'"):
        vectors.parse(f"activations:model={tiny}:hook=model.layers.7").check()
