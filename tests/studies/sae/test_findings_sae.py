"""What docs/findings_sae.py says is decided by the numbers: every sentence, both ways."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from assay.metrics.intervals import student_t


@pytest.fixture(scope="module")
def page(script: Any) -> Any:
    return script("docs/findings_sae.py")


def point(family: str = "lse_infomax", **metrics: list[float]) -> Any:
    """By metric, its values at seeds 0, 1, ..."""
    values = {name: dict(enumerate(map(float, found))) for name, found in metrics.items()}
    cell = SimpleNamespace(
        values=lambda name: values.get(name, {}),
        seeds=range(3),
        options={"d_code": 64},
        records=[SimpleNamespace(metrics={"params": metrics.get("params", [0])[0]})],
    )
    return SimpleNamespace(cell=cell, family=family, l0=metrics.get("l0", [8.0])[0])


@pytest.mark.parametrize("change, said", [(-20.0, "sparser"), (20.0, "denser")])
def test_what_the_lse_does_to_sparsity(page: Any, change: float, said: str) -> None:
    d = point(l0=[40.0, 41, 42], fvu=[0.1, 0.1, 0.1])
    c = point(l0=[40 + change, 41.5 + change, 42 + change], fvu=[0.2, 0.21, 0.2])
    (claim,) = page.what_lse_adds({page.C: c, page.D: d})
    assert said in claim.text and claim.answer == "-", "no probe, no answer"
    (same,) = page.what_lse_adds({page.C: point(l0=[39.0, 42, 42], fvu=[0.1, 0.2, 0.1]), page.D: d})
    assert "nothing that could be told" in same.text


def test_whether_the_lse_adds_to_the_probe(page: Any) -> None:
    d = point(l0=[40.0, 41, 42], fvu=[0.1, 0.1, 0.1], probe_accuracy=[0.90, 0.91, 0.92])
    for shift, said in ((0.05, "more"), (-0.05, "less")):
        c = point(l0=[1.0, 2, 3], fvu=[0.2, 0.2, 0.2], probe_accuracy=[0.901 + shift, 0.91 + shift, 0.92 + shift])
        (claim,) = page.what_lse_adds({page.C: c, page.D: d})
        assert f"**{said}**" in claim.text and claim.answer == said


@pytest.mark.parametrize("gap, said", [(0.02, "yes"), (0.5, "no")])
def test_whether_entropy_is_the_log_of_the_inactive_units(page: Any, gap: float, said: str) -> None:
    c = point(
        responsibility_entropy=[3 + gap, 3.1 + gap, 3.201 + gap], log_inactive=[3.0, 3.1, 3.2], weight_norm=[5.0, 5, 5]
    )
    (claim,) = page.entropy({page.C: c})
    assert f"**{said}**" in claim.text and claim.answer == f"C {said}"


@pytest.mark.parametrize(
    "theirs, trained, decoded",
    [(101_200, "kept", "not kept"), (60_000, "not kept", "not kept"), (202_240, "not kept", "kept")],
)
def test_whether_half_the_parameters_are_saved(page: Any, theirs: int, trained: str, decoded: str) -> None:
    (claim,) = page.size({page.C: point(params=[50_240]), page.SAE: point(params=[theirs])})
    assert f"): **{trained}**;" in claim.text and claim.text.endswith(f"needs: **{decoded}**.")
    assert claim.answer == decoded


def test_the_sparsest_topk_is_one_that_is_not_told_below(page: Any) -> None:
    c = point(l0=[20.0, 20, 20], probe_accuracy=[0.90, 0.91, 0.92], fvu=[0.2] * 3)
    low = point("topk", l0=[4.0, 4, 4], probe_accuracy=[0.80, 0.81, 0.825], fvu=[0.4] * 3)
    high = point("topk", l0=[32.0, 32, 32], probe_accuracy=[0.95, 0.96, 0.975], fvu=[0.1] * 3)
    (claim,) = page.topk_at_equal_l0({page.C: c, "low": low, "high": high})
    assert "L0 32" in claim.text and claim.answer == "unexplained variance less; probe accuracy more"
    equal = point("topk", l0=[4.0, 4, 4], probe_accuracy=[0.91, 0.90, 0.92], fvu=[0.4] * 3)
    assert "L0 4" in page.topk_at_equal_l0({page.C: c, "low": equal, "high": high})[0].text


@pytest.mark.parametrize("slope, said", [(-1.0, "1 of 1"), (-3.0, "0 of 1")])
def test_whether_convergence_is_minus_k_ln_t(page: Any, slope: float, said: str) -> None:
    units, records = 16, []
    for seed in range(3):
        curve = [slope * (1 + (seed - 1) / 100) * units * math.log(t) for t in range(1, 101)]
        run = SimpleNamespace(options={"recipe": {"optimizer": "sgd"}, "d_code": units, "lr": 0.01})
        records.append(SimpleNamespace(status="done", run=run, metrics={"history": {"train_loss": curve}}))
    (claim,) = page.convergence(records)
    assert claim.text.count(f"**{said}**") == 2 and ("| yes |" in claim.text) == (slope == -1.0)
    assert claim.answer == f"epoch {said}, slope {said}"


def test_in_short_every_claim_has_an_answer_of_every_data_set(page: Any) -> None:
    yes, no = page.Claim("it holds", "yes", ""), page.Claim("it holds", "no", "")
    other = page.Claim("it is new", "maybe", "")
    lines = page.in_short({"mnist on cuda": [yes], "digits on cpu": [no, other]}).splitlines()
    assert lines[0] == "|  | mnist | digits |" and lines[2:] == ["| it holds | yes | no |", "| it is new | - | maybe |"]
    assert page.in_short({"mnist (a=1)": [yes], "mnist (a=2)": [no]}).startswith("|  | mnist (a=1) | mnist (a=2) |")


def test_bands_and_intervals(page: Any) -> None:
    assert page.holds(student_t([1.0]), 0, 2) == page.contains(student_t([1.0]), 1) == "one seed: not decided"
    assert page.holds(student_t([1.0, 9.0]), 0, 2) == "not decided"


@pytest.mark.parametrize("shift, said", [(-0.1, "better"), (0.1, "worse"), (0.0, "not told apart")])
def test_the_field_at_equal_l0_is_judged_against_the_decoder_free_coder(page: Any, shift: float, said: str) -> None:
    def curve(family: str, more: float) -> list[Any]:
        noise = [0.001, -0.001, 0.0] if more == 0 else [0.0, 0.0, 0.0]
        return [
            point(
                family,
                l0=[l0] * 3,
                fvu=[base + more + jitter + seed / 100 for seed, jitter in enumerate(noise)],
                loss_recovered_from_mean=[0.9 - more + jitter for jitter in noise],
            )
            for l0, base in ((8.0, 0.5), (32.0, 0.3))
        ]

    text, table = page.field_at_equal_l0([*curve("lse_infomax", 0.0), *curve("topk", shift)])
    assert f"- L0 16: by FVU **{said}** `topk`. by loss recovered **{said}** `topk`." in text
    assert "L0 4:" not in text and "L0 64" not in text, "no curve reaches there"
    (row,) = [line for line in table.splitlines() if line.startswith("| 16 | `topk`")]
    assert row.count(said) == 2 and f"{shift:+.3f}" in row


def test_an_l0_that_the_decoder_free_coder_does_not_reach_is_said(page: Any) -> None:
    field = [point(name, l0=[l0] * 3, fvu=[0.3] * 3) for name in ("topk", "gated") for l0 in (8.0, 32.0)]
    text, table = page.field_at_equal_l0(field)
    assert "- L0 16: `lse_infomax` does not reach it." in text and "| 16 | `gated` | 0.300" in table
    assert page.field_at_equal_l0(field[:2]) == [], "one coder alone is no field"
