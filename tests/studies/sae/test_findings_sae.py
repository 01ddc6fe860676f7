"""What docs/findings_sae.py says is decided by the numbers: every sentence, both ways."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.core.run import Record, Run
from assay.metrics.intervals import student_t
from assay.report.rows import Row


@pytest.fixture(scope="module")
def page(script: Any) -> Any:
    return script("docs/findings_sae.py")


def point(family: str = "lse_infomax", *, rate: float = 1e-3, **metrics: list[float]) -> Row:
    """By metric, its values at seeds 0, 1, ..."""
    seeds = range(max(map(len, metrics.values())))
    records = {seed: record(seed, rate, **{name: found[seed] for name, found in metrics.items()}) for seed in seeds}
    return Row(tuple(records.values()), {"coder": family}, family, tune="lr", tried={rate: records})


def record(seed: int, rate: float, **metrics: Any) -> Record:
    options = {"d_code": 64, "lr": rate, "recipe": {"optimizer": "adam"}}
    return Record(Run("sae", options, seed, {}), "done", metrics)


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


@pytest.mark.parametrize(
    "gap, norm, said", [(0.02, 50.0, "yes"), (0.5, 50.0, "no"), (0.5, 5.0, "scale too small to tell")]
)
def test_whether_entropy_is_the_log_of_the_inactive_units(page: Any, gap: float, norm: float, said: str) -> None:
    c = point(
        responsibility_entropy=[3 + gap, 3.1 + gap, 3.201 + gap], log_inactive=[3.0, 3.1, 3.2], weight_norm=[norm] * 3
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
    c = point(l0=[24.0, 24, 24], probe_accuracy=[0.90, 0.91, 0.92], fvu=[0.2] * 3)
    low = point("topk", l0=[8.0, 8, 8], probe_accuracy=[0.80, 0.81, 0.825], fvu=[0.4] * 3)
    high = point("topk", l0=[32.0, 32, 32], probe_accuracy=[0.95, 0.96, 0.975], fvu=[0.1] * 3)
    (claim,) = page.topk_at_equal_l0({page.C: c, "low": low, "high": high})
    assert "L0 32" in claim.text and claim.answer == "unexplained variance less; probe accuracy more"
    equal = point("topk", l0=[8.0, 8, 8], probe_accuracy=[0.91, 0.90, 0.92], fvu=[0.4] * 3)
    assert (
        "no proof that they are equal): L0 8" in page.topk_at_equal_l0({page.C: c, "low": equal, "high": high})[0].text
    )


def fall(seed: int, units: int, slope: float = -1.0, rate: float = 0.01) -> Record:
    """A run under SGD whose loss is slope K ln t."""
    curve = [slope * units * math.log(t) for t in range(1, 101)]
    options = {"recipe": {"optimizer": "sgd"}, "d_code": units, "lr": rate}
    return Record(Run("sae", options, seed, {}), "done", {"history": {"train_loss": curve}})


@pytest.mark.parametrize(
    "slopes, said",
    [
        ((-1.03, -1.04, -1.05), "1 of 1 yes"),  # tight, near -1 and without it
        ((-0.5, -1.0, -1.5), "0 of 1 yes, 1 not decided"),  # noise around -1
        ((-3.0, -3.1, -3.2), "0 of 1 yes, 1 no"),
    ],
)
def test_a_slope_is_minus_one_by_how_close_it_is_not_by_how_wide(page: Any, slopes: Any, said: str) -> None:
    (claim,) = page.convergence([fall(seed, 16, slope) for seed, slope in enumerate(slopes)])
    assert f"**{said}**" in claim.text and claim.answer == f"epoch: one K alone cannot tell; slope: {said}"


def test_whether_the_epoch_goes_with_the_units(page: Any) -> None:
    grows = [fall(seed, units) for seed in range(3) for units in (16, 32, 64)]
    (claim,) = page.convergence(grows)
    assert claim.answer == "epoch: 1 of 1 yes; slope: 3 of 3 yes"
    same = [fall(seed, units, -64 / units) for seed in range(3) for units in (16, 32, 64)]
    (claim,) = page.convergence(same)
    assert claim.answer.startswith("epoch: 0 of 1 yes, 1 no"), "one epoch whatever K"


def test_in_short_every_claim_has_an_answer_of_every_data_set(page: Any) -> None:
    yes, no = page.Claim("it holds", "yes", ""), page.Claim("it holds", "no", "")
    other = page.Claim("it is new", "maybe", "")
    lines = page.in_short({"mnist on cuda": [yes], "digits on cpu": [no, other]}).splitlines()
    assert lines[0] == "|  | mnist | digits |" and lines[2:] == ["| it holds | yes | no |", "| it is new | - | maybe |"]
    assert page.in_short({"mnist (a=1)": [yes], "mnist (a=2)": [no]}).startswith("|  | mnist (a=1) | mnist (a=2) |")


def test_bands_and_intervals(page: Any) -> None:
    assert page.holds(student_t([1.0]), 0, 2) == "one seed: not decided"
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
    ends = ((8.0, 0.4), (32.0, 0.2))
    field = [point(name, l0=[l0] * 3, fvu=[fvu] * 3) for name in ("topk", "gated") for l0, fvu in ends]
    text, table = page.field_at_equal_l0(field)
    assert "- L0 16: `lse_infomax` does not reach it." in text and "| 16 | `gated` | 0.001 | 0.300" in table
    assert page.field_at_equal_l0(field[:2]) == [], "one coder alone is no field"


def test_the_rate_and_the_seeds_of_a_row_are_said_where_they_differ(page: Any) -> None:
    three = [point("topk", l0=[l0] * 3, fvu=[1 / l0] * 3, validation_fvu=[1 / l0] * 3) for l0 in (8.0, 32.0)]
    two = [point("gated", l0=[l0] * 2, fvu=[1 / l0] * 2, validation_fvu=[1 / l0] * 2) for l0 in (8.0, 32.0)]
    three = [replace(level, tried={**level.tried, 3e-3: _worse(level, 3e-3)}) for level in three]
    _, table = page.field_at_equal_l0(three + two)
    assert table.startswith("| L0 | coder | lr | n |") and "| 16 | `topk` | 0.001* | 3 |" in table
    assert "| 16 | `gated` | 0.001 | 2 |" in table
    assert "| n |" not in page.field_at_equal_l0(three + [replace(level, label="gated") for level in three])[1]
    assert page.table(three + two).startswith("| coder | lr | n | L0 |") and "| n |" not in page.table(three)


def _worse(level: Row, rate: float) -> dict[int, Record]:
    """The level's records at another rate, with much more validation error."""
    return {r.run.seed: record(r.run.seed, rate, **{**r.metrics, "validation_fvu": 0.9}) for r in level.records}


def test_the_floor_of_the_atoms_is_named(page: Any) -> None:
    field = [
        point(name, l0=[l0] * 3, fvu=[1 / l0] * 3, atom_cosine=[0.5] * 3)
        for name in ("topk", "lse_infomax")
        for l0 in (8.0, 32.0)
    ]
    assert "floor" not in page.field_at_equal_l0(field)[0]
    floor = point("random_relu", l0=[9.0] * 3, fvu=[0.3] * 3, atom_cosine=[0.38] * 3)
    assert "(`random_relu`): atoms 0.380 ± 0.000." in page.field_at_equal_l0([*field, floor])[0]


def test_claims_compare_at_the_papers_rate_or_the_nearest_that_was_run(page: Any) -> None:
    fitted = Record(Run("sae", {"lr": None}, 0, {}), "done", {})
    trained = [record(0, rate) for rate in (1e-4, 5e-4, 1e-2)]
    assert page.papers_rate([fitted, *trained]) == (5e-4, [fitted, trained[1]])
    assert page.papers_rate([record(0, 1e-3), *trained])[0] == 1e-3


def test_what_was_not_run_is_derived_from_what_was(page: Any) -> None:
    assert page.not_run(["mnist on cuda", "digits on cpu", "dictionary on cuda (d_in=64)"]) == (
        "Not run: SmolLM2's activations (`activations`)."
    )
    assert page.not_run(page.KINDS) == "All of its data sets have been run."


def wide(page: Any, family: str, more: float, units: int = 512) -> list[Any]:
    """A curve of three seeds; the encoder has 64 inputs."""
    return [
        point(
            family,
            l0=[l0] * 3,
            fvu=[fvu + more + seed / 1000 for seed in range(3)],
            loss_recovered_from_mean=[0.9 - more - fvu / 10 + seed / 1000 for seed in range(3)],
            params=[units * 65] * 3,
        )
        for l0, fvu in ((8.0, 0.5), (32.0, 0.3))
    ]


def test_overcomplete_codes_stand_together_with_every_difference_and_what_was_not_run(page: Any) -> None:
    field = [*wide(page, "lse_infomax", 0.0), *wide(page, "topk", -0.1)]
    assert page.overcomplete(field, 512) == field and page.overcomplete(field[2:], 512) == [], "no encoder to tell by"
    narrow = wide(page, "lse_infomax", 0.0, units=511)
    assert page.overcomplete(narrow, 511) == []
    both = page.overcomplete_at_equal_l0(
        {"dictionary on cuda (d_in=64)": field, "activations on cuda": field}, page.KINDS
    )
    assert both.startswith("### Overcomplete codes: at least 8 units for each input") and "Not run" not in both
    assert "known atoms (`dictionary on cuda (d_in=64)`):" in both
    assert "SmolLM2's activations (`activations on cuda`):" in both
    assert both.count("| L0 | coder | n | FVU | loss recovered |") == 2
    row = "| 16 | `topk` | 3 | -0.100 [-0.100, -0.100] better | +0.100 [+0.100, +0.100] better |"
    assert both.count(row) == 2
    one = page.overcomplete_at_equal_l0({"dictionary on cuda (d_in=64)": field}, page.KINDS)
    assert "Not run: SmolLM2's activations (`activations`)." in one and one.count(row) == 1
    alone = page.overcomplete_at_equal_l0({"activations on cuda": field[:2]}, page.KINDS)
    assert "(`activations on cuda`):\n\n`lse_infomax` has no L0 in common" in alone
    assert page.overcomplete_at_equal_l0({}, page.KINDS).endswith(
        "Not run: known atoms (`dictionary`), SmolLM2's activations (`activations`)."
    )


def test_a_page_without_a_place_for_the_section_is_an_error(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.md"
    monkeypatch.setattr("sys.argv", ["findings_sae.py", str(tmp_path), "--page", str(path)])
    for text, said in ((None, "No such file"), ("no marks\n", "it stands between <!-- sae: begin -->")):
        if text is not None:
            path.write_text(text)
        with pytest.raises(SystemExit) as left:
            page.main()
        err = capsys.readouterr().err
        assert left.value.code == 2 and "page.md" in err and said in err
    assert path.read_text() == "no marks\n"
