"""A run whose largest tensor exceeds the free memory is refused by its label, before anything is computed."""

from pathlib import Path

import pytest

from assay.core import memory
from assay.core.errors import UserError
from assay.core.memory import check_memory, free_memory, size
from assay.core.study import Study
from assay.studies import studies

GB = 10**9
LARGE = {
    "icl": {"task": "mqar:vocab_size=1000000000"},
    "expressivity": {"L": 10**5, "models": ["MeanLinear"]},
    "modular.sweep": {"P": 20_000, "dimensions": [20_000]},
    "sae": {"data": "dictionary:d_in=100000", "d_code": 10**6},
    "sae.theorem": {"batch_size": 10**9},
}


@pytest.mark.parametrize("name", LARGE)
def test_the_largest_tensor_of_each_study_is_checked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.api import configure

    monkeypatch.setattr(memory, "free_memory", lambda: 8 * GB)
    small, large = configure(studies[name], None, {}), configure(studies[name], None, dict(LARGE[name]))  # type: ignore[type-abstract]
    check_memory(small.plan())
    with pytest.raises(UserError, match=rf"^{name} .* 8.0 GB are free"):
        check_memory(large.plan())


def test_what_is_unknown_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Study().largest(studies["icl"]().plan()[0]) == 0  # type: ignore[abstract]
    monkeypatch.setattr(memory, "free_memory", lambda: None)
    check_memory(studies["icl"]().plan())


def test_a_container_has_what_its_group_leaves(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{2 * GB}\n")
    (tmp_path / "memory.current").write_text(f"{GB}\n")
    assert free_memory(tmp_path) == GB
    (tmp_path / "memory.max").write_text("max\n")
    assert (free_memory(tmp_path) or 0) > GB // 100


def test_sizes_in_words() -> None:
    assert [size(n) for n in (812 * 10**6, 21_400 * 10**6, 4_100 * 10**9)] == ["812 MB", "21.4 GB", "4.1 TB"]
