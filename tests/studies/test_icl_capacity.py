"""Presets `capacity` and `zoology`: which models they compare, what their report says, and what it leaves out."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from assay.api import combined_grid, configure
from assay.core import shipped
from assay.core.plan import make_plan
from assay.core.run import Numerics, Record, Run
from assay.metrics.intervals import paired_p
from assay.mixers import mixers
from assay.report.claims import has_options
from assay.report.rows import Row, rows
from assay.report.section import Section
from assay.studies.icl.capacity import capacity, chosen_rate, has_convolution
from assay.studies.icl.claims import CLAIMS, PUBLISHED, kendall_tau, order_agreement
from assay.studies.icl.findings import say
from assay.studies.icl.icl import InContext
from assay.studies.icl.k90 import Capacity, capacity_interval
from assay.studies.icl.learning import bits, bits_of, compared, learned
from assay.studies.icl.memories import MemoryShape, memory_curve, memory_shape
from assay.studies.icl.presets import PRESETS, ZOOLOGY
from assay.studies.icl.report import trained

SIZES = (4, 8, 16, 32)
RECALLS = {4: 1.0, 8: 0.99, 16: 0.95, 32: 0.6}
GUESSES = {4: 0.26, 8: 0.13, 16: 0.06, 32: 0.03}


def record(mixer: str, seed: int, by_size: dict[int, float], *, lr: float = 3e-3, **metrics: Any) -> Record:
    options = {
        "task": {"name": "mqar", "input_seq_len": 128, "vocab_size": 8192, "num_kv_pairs": 32, "power_a": 1.0,
                 "filler": "no_keys", "key_pool": "all", "min_kv_pairs": 4, "values": "hidden"},
        "model": {"seq_mixer": mixers.parse(mixer).spec(), "model_dim": 32},
        "optimizer": {"lr": lr},
    }  # fmt: skip
    named = {str(size): score for size, score in by_size.items()}
    mean = sum(by_size.values()) / len(by_size)
    found = {"by_size": named, "accuracy": mean, "curve": [{"step": 100, "accuracy": mean}], "state_scalars": 1024}
    found |= {"layer_params": 5000, **metrics}
    return Record(Run("icl", options, seed, {}), "done", found)


def tables(records: list[Record]) -> dict[str, list[dict[str, Any]]]:
    out = Section("icl")
    capacity(trained(records), out)
    return {table.name: [dict(row) for row in table.rows] for table in out.tables}


def line(records: list[Record], mixer: str) -> dict[str, Any]:
    (found,) = [row for row in tables(records)["capacity_conv"] if row["seq_mixer"] == mixer]
    return found


def test_a_row_that_is_not_told_from_a_guess_is_no_finding_about_a_mixer() -> None:
    """A guess has (1/4 + 1/8 + 1/16 + 1/32) / 4 = .117 of the answers right."""
    records = [record("delta_net", seed, RECALLS) for seed in range(3)]
    records += [record("mamba2", seed, {size: 0.9 / size for size in SIZES}) for seed in range(3)]
    uneven = (RECALLS, {size: 1 / size for size in SIZES}, {size: 1 / size for size in SIZES})
    records += [record("retention", seed, found) for seed, found in enumerate(uneven)]
    for each in records:
        each.run.options["model"]["state_mixer"] = {"name": "none"}
        each.run.options["train"] = {"max_steps": 100}
    out = Section("icl")
    say(trained(records), out)
    (said,) = [finding.sentence for finding in out.findings if "a guess" in finding.sentence]
    assert said.startswith("No better than a guess (accuracy 0.12), or not told from it: mamba2, retention. This says")


def test_a_row_that_did_not_learn_has_no_capacity_no_bits_and_no_edge() -> None:
    rates = [record("mamba2", seed, GUESSES, lr=lr) for seed in range(3) for lr in (1e-3, 3e-3)]
    found = line([*rates, record("delta_net", 0, RECALLS)], "mamba2")
    assert found["learned"] == "0/3" and found["K90"] == "not learned"
    assert found["bits"] is None and found["lr"] is None and found.get("vs best") is None


def test_capacity_is_of_the_seeds_that_left_the_plateau() -> None:
    seeds = [record("delta_net", 0, RECALLS, left_plateau=300), record("delta_net", 1, GUESSES, left_plateau=None)]
    found = line([*seeds, record("delta_net", 2, RECALLS, left_plateau=500)], "delta_net")
    assert found["learned"] == "2/3" and found["steps to learn"].mean == 400
    assert found["K90"].startswith(line([seeds[0]], "delta_net")["K90"]), "the seed that guesses would lower it"
    assert found["share learned"].low < 2 / 3 < found["share learned"].high


def test_bits_come_from_the_stored_loss_and_from_the_accuracy_where_there_is_none() -> None:
    old = record("delta_net", 0, RECALLS)
    assert bits_of(old) < 32 * 12 * 0.6
    losses = {str(size): 0.01 * size for size in SIZES}
    stored = record("delta_net", 0, RECALLS, loss_by_size=losses)
    assert bits_of(stored) == pytest.approx(32 * (12 - 0.32 / math.log(2)))


def test_knowing_which_values_there_were_is_no_recall() -> None:
    """Who guesses among the 32 values of a sequence has 224 bits about them, and none about whose they are."""
    guess = {str(size): math.log(size) for size in SIZES}
    of_the_set = record("delta_net", 0, RECALLS, loss_by_size=guess)
    assert bits_of(of_the_set) == pytest.approx(32 * (12 - 5)) and bits_of(of_the_set, beyond=True) == pytest.approx(0)
    sure = record("mamba2", 0, RECALLS, loss_by_size=dict.fromkeys(guess, 0.0))
    assert bits_of(sure, beyond=True) == 32 * 5
    found = {row["seq_mixer"]: row for row in tables([of_the_set, sure])["capacity_conv"]}
    assert found["mamba2"]["bits beyond the set"].mean == 160 == found["(oracle)"]["bits beyond the set"]
    assert next(iter(found)) == "mamba2", "rows stand by what is beyond the set"


def test_the_guess_the_lookup_and_untrained_memories_stand_beside() -> None:
    found = {row["seq_mixer"]: row for row in tables([record("delta_net:num_heads=1", 0, RECALLS)])["capacity_conv"]}
    assert found["(1/K, a guess)"]["accuracy"] == pytest.approx(sum(1 / size for size in SIZES) / 4)
    assert found["(oracle)"]["K90"] == ">= 32" and found["(oracle)"]["bits"] == 32 * 12
    assert found["(least squares, 32 x 32)"]["K90"] == ">= 32"
    assert found["(hebbian, 32 x 32)"]["state bytes"] == 4 * 32 * 32


def test_an_edge_of_a_row_that_learned_names_the_rates_to_add() -> None:
    records = [record("delta_net", seed, RECALLS, lr=lr) for seed in range(2) for lr in (1e-2, 3e-2)]
    out = Section("icl")
    capacity(trained(records), out)
    assert "add to --grid optimizer.lr: delta_net 0.003." in out.tables[0].note
    assert out.tables[0].rows[0]["lr"] == "0.01 edge"


def test_a_row_that_learned_nothing_has_no_edge() -> None:
    """In zoology's cells its rate is shown all the same."""
    rates = [record("sliding_window", seed, GUESSES, lr=lr) for seed in range(2) for lr in (1e-2, 3e-2)]
    recalls = [record("delta_net", seed, RECALLS, lr=lr) for seed in range(2) for lr in (1e-2, 3e-2)]
    rows = {row.label: chosen_rate(row) for row in trained([*rates, *recalls])}
    assert sorted(rows.values()) == ["0.01", "0.01 edge"], rows


def test_a_sweep_that_was_stopped_in_between_says_which_rates_are_to_be_run_with_every_seed() -> None:
    some = [record("delta_net", 0, RECALLS, lr=1e-2), record("delta_net", 1, RECALLS, lr=3e-2)]
    out = Section("icl")
    capacity(trained(some), out)
    (table,) = out.tables
    assert "what to add to --grid optimizer.lr: delta_net 0.01,0.03." in table.note


def test_the_page_shows_what_the_shipped_records_say(script: Callable[[str], ModuleType]) -> None:
    page_of = script("docs/capacity_icl.py")
    page = page_of.PAGE.read_text(encoding="utf-8")
    assert page_of.placed(page) == page, "run python docs/capacity_icl.py"
    found = page.partition("<!-- capacity: begin -->")[2].partition("<!-- capacity: end -->")[0]
    shown = page.partition("<!-- all-numbers: begin -->")[2].partition("<!-- all-numbers: end -->")[0]
    assert len(shipped.records("icl.capacity")) == 1285
    assert shown.partition("d = 64:")[2].partition("d = 128:")[0].count("\n| ") == 14
    before = shown.partition("K90 at d = 64 with `--backend torch`")[0]
    assert ", edge" not in before and "No chosen rate of a row that learned is at an edge" in found
    assert "not learned (all: 4.5 (< 4, 5])" in found, "what did not learn does not hide its curve"
    bare = page.partition("<!-- no-convolution: begin -->")[2].partition("<!-- no-convolution: end -->")[0]
    rows = bare.partition("Seeds that learn")[0].splitlines()
    assert sum("| 5/5 |" in row for row in rows) == 6
    assert ", edge" not in bare and "No chosen rate of a row that learned is at an edge" in bare


def test_the_page_shows_which_rows_longer_training_moves(script: Callable[[str], ModuleType]) -> None:
    page_of = script("docs/longer_icl.py")
    page = page_of.PAGE.read_text(encoding="utf-8")
    assert page_of.placed(page) == page, "run python docs/longer_icl.py"
    longer = page.partition("<!-- doubled: begin -->")[2].partition("<!-- doubled: end -->")[0]
    moved = [line.strip("| ").split(" | ")[0].split(", ") for line in longer.splitlines() if "| no |" in line]
    names = {width: [name.strip("`") for name, d in moved if d == str(width)] for width in (32, 64, 128)}
    assert names == {
        32: ["mamba2"],
        64: ["mamba2", "mlstm", "based"],
        128: ["mamba2", "based", "gated_linear_attn", "retention"],
    }
    assert longer.count("| yes |") == 24
    fourfold = page.partition("<!-- fourfold: begin -->")[2].partition("<!-- fourfold: end -->")[0]
    assert "| 69.6 [63.1, 78.0] | 103.3 [99.9, 107.0] | 129.8 [122.3, 135.5] |" in fourfold


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ((1.0, 0.99, 0.95, 0.6), (1.0, 0.99, 0.96, 0.62), True),
        ((1.0, 0.99, 0.95, 0.6), (1.0, 0.99, 0.98, 0.89), False),
        ((1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 1.0), True),
        ((1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 0.6), False),
        ((0.5, 0.4, 0.3, 0.2), (1.0, 0.4, 0.3, 0.2), False),
    ],
)
def test_capacity_is_settled_if_twice_the_training_leaves_it_in_its_interval(
    before: tuple[float, ...], after: tuple[float, ...], same: bool, script: Callable[[str], ModuleType]
) -> None:
    def held(curve: tuple[float, ...]) -> Capacity:
        return capacity_interval(SIZES, [[accuracy - spread for accuracy in curve] for spread in (0.0, 0.01, 0.02)])

    assert script("docs/longer_icl.py").settled(held(before), held(after)) is same


def test_a_bound_beyond_the_sizes_tried_is_open(script: Callable[[str], ModuleType]) -> None:
    spread = capacity_interval(SIZES, [[1.0, 1.0, 0.95, 0.6], [1.0, 1.0, 0.95, 0.8], [1.0, 1.0, 1.0, 0.95]])
    assert spread.point.censored == "no" and spread.high is not None and spread.high.censored == "above"
    assert script("docs/longer_icl.py").settled(spread, capacity_interval(SIZES, [[1.0] * 4] * 3))


def test_no_record_that_is_read_is_by_kernels_with_a_fault() -> None:
    faulty = re.compile('"name": "(kda|gated_delta_net|delta_product|mamba2)"')

    def older(name: str) -> list[Record]:
        there = [record for record in shipped.records(name) if record.run.numerics.backend == "triton"]
        options = [json.dumps(record.run.options["model"]) for record in there]
        # Nothing decays where delta_product does not forget, as in the words of S5.
        decays = [bool(faulty.search(said)) and '"forget": false' not in said for said in options]
        return [r for r, its in zip(there, decays, strict=True) if its and r.finished < "2026-11-19T00:02"]

    assert older("icl.faulty"), "those of before, which the page compares"
    names = {path.name.removesuffix(".jsonl.xz") for path in shipped.FOLDER.glob("*.jsonl.xz")}
    assert not any(older(name) for name in names - {"icl.faulty"}) and {"icl.capacity", "card.standard"} < names


@pytest.mark.parametrize("name", ["zoology", "reflections", "speed", "mended"])
def test_the_page_shows_the_tables_as_the_shipped_records_have_them(
    name: str, script: Callable[[str], ModuleType]
) -> None:
    page_of = script(f"docs/{name}_icl.py")
    page = page_of.PAGE.read_text(encoding="utf-8")
    assert page_of.placed(page) == page, f"run python docs/{name}_icl.py"


def test_a_row_at_an_edge_is_neither_the_best_nor_compared() -> None:
    """It might be better still: what it recalls is shown, and no difference."""
    poor = {**RECALLS, 16: 0.7, 32: 0.4}
    records = [record("delta_net", seed, RECALLS, lr=lr) for seed in range(3) for lr in (1e-2, 3e-2)]
    records += [record(name, seed, poor, lr=1e-2) for name in ("mamba2", "kda") for seed in range(3)]
    found = {row["seq_mixer"]: row for row in tables(records)["capacity_conv"]}
    assert found["delta_net"]["vs best"] is None and found["delta_net"]["lr"] == "0.01 edge"
    assert [found[name]["vs best"] for name in ("mamba2", "kda")].count(None) == 1, "one of the two is the best"


@pytest.mark.parametrize("seeds", [1, 2])
def test_intervals_are_explained_where_there_are_some(seeds: int) -> None:
    out = Section("icl")
    capacity(trained([record("delta_net", seed, RECALLS) for seed in range(seeds)]), out)
    for word in ("±", "Wilson", "interval over seeds"):
        assert (word in out.tables[0].note) == (seeds > 1)


def named(records: list[Record]) -> dict[str, Row]:
    found = rows(records, names={"seq_mixer": "model.seq_mixer"})
    return {row.options["model"]["seq_mixer"]["name"]: row for row in found}


def test_each_row_is_compared_with_two_and_not_with_all() -> None:
    """With 15 rows of 3 seeds Holm over all 105 pairs needs |t| of 46."""
    names = [name for name in mixers.names() if name not in ("hybrid", "sparse_attention")][:8]
    records = [
        record(name, seed, RECALLS, loss_by_size={"32": 3 - 0.2 * place + 0.004 * Random(10 * place + seed).random()})
        for place, name in enumerate(names)
        for seed in range(3)
    ]
    found = named(records)
    best, base = found[names[-1]], found[names[0]]
    versus = compared(list(found.values()), {"best": best, "linear_attention": base})
    assert len(versus) == 2 * (len(names) - 1)
    assert all("*" in str(each) for (_, other), each in versus.items() if other == "linear_attention")


def test_the_best_against_the_baseline_is_one_test() -> None:
    """It is read from both sides. Of two rows it is the only one, so Holm corrects for nothing."""
    records = [
        record(name, seed, RECALLS, loss_by_size={"32": loss + 0.03 * Random(loss + seed).random()})
        for name, loss in (("delta_net", 1.0), ("linear_attention", 1.01))
        for seed in range(3)
    ]
    found = named(records)
    best, base = found["delta_net"], found["linear_attention"]
    versus = compared([best, base], {"best": best, "linear_attention": base})
    (p,) = {each.p for each in versus.values()}
    assert p == pytest.approx(paired_p(bits(best, beyond=True), bits(base, beyond=True)))
    assert p is not None and 0.05 < p < 1


@pytest.mark.parametrize("seeds", [5, 6])
def test_where_seeds_did_not_learn_the_comparison_draws_them_anew(seeds: int) -> None:
    """Of five seeds no bootstrap's p is below .05: what could not be told has no p, and does not count for Holm."""

    def bits_near(name: str, loss: float) -> list[Record]:
        losses = [loss + 0.03 * Random(f"{name} {seed}").random() for seed in range(seeds)]
        return [record(name, seed, RECALLS, loss_by_size={"32": losses[seed]}) for seed in range(seeds)]

    records = [record("mamba2", seed, RECALLS if seed else GUESSES) for seed in range(seeds)]
    found = named([*records, *bits_near("delta_net", 1.0), *bits_near("kda", 1.1)])
    best = found["delta_net"]
    drawn, tested = compared([found["mamba2"], found["kda"]], {"best": best}).values()
    assert len(learned(found["mamba2"])) == seeds - 1
    alone = paired_p(bits(found["kda"], beyond=True), bits(best, beyond=True))
    assert drawn.difference.mean < 0 and alone < 2 ** (1 - seeds)
    assert (drawn.p, tested.p) == ((None, alone) if seeds == 5 else (2**-5, pytest.approx(2 * alone)))


def test_two_rows_that_recall_all_that_was_asked_are_not_compared() -> None:
    full, sure = dict.fromkeys(SIZES, 0.95), dict.fromkeys(SIZES, 1.0)
    records = [record("delta_net", seed, sure) for seed in range(3)]
    records += [record("kda", seed, full) for seed in range(3)] + [record("mamba2", seed, RECALLS) for seed in range(3)]
    found = named(records)
    versus = compared([found["kda"], found["mamba2"]], {"best": found["delta_net"]})
    assert {series for series, _ in versus} == {found["mamba2"].series}


def test_memories_hold_what_their_definition_says() -> None:
    shape = MemoryShape(1, 16, 16)
    hebbian, squares = (memory_curve(rule, shape, (4, 16, 64), 512) for rule in ("hebbian", "least squares"))  # type: ignore[arg-type]
    assert squares[:2] == (1.0, 1.0), "exact for up to d_k pairs"
    assert hebbian[0] > hebbian[1] > hebbian[2] and hebbian[1] < 1 and squares[2] < 1
    assert memory_shape(mixers.parse("delta_net:num_heads=2").spec(), 64) == MemoryShape(2, 32, 32)
    assert memory_shape(mixers.parse("mamba2:d_state=16").spec(), 64) == MemoryShape(1, 16, 128)
    assert memory_shape(mixers.parse("mlstm:num_heads=2").spec(), 64) == MemoryShape(2, 64, 64)
    assert memory_shape(mixers.parse("linear_attention:num_heads=1:feature_map=hedgehog").spec(), 64) == MemoryShape(
        1, 128, 64
    )
    assert memory_shape(mixers.parse("attention").spec(), 64) is None
    assert memory_shape({"name": "of_nobody"}, 64) is None
    assert MemoryShape(2, 32, 64).scalars("least squares") == 2 * (32 * 64 + 32 * 32), "of k v^T, and of k k^T"


@pytest.mark.parametrize("name", [name for name in mixers.names() if name != "fla_layer"])
def test_the_matrices_of_a_mixer_are_a_part_of_its_state(name: str) -> None:
    mixer = mixers.load({"name": name})
    shape = mixer.matrices(64)
    assert shape is None or 0.5 * mixer.core_state(64, 1) <= math.prod(shape) <= mixer.core_state(64, 1)


@pytest.mark.parametrize("preset", ["capacity", "capacity-no-conv", "zoology"])
def test_every_setting_can_be_built_at_every_width(preset: str) -> None:
    study = configure(InContext, preset, {})
    for word in PRESETS[preset]["grid"]["model.seq_mixer"]:
        for width in PRESETS[preset]["grid"]["model.model_dim"]:
            mixer = mixers.parse(word)
            replace(study.model, seq_mixer=mixer, model_dim=int(width)).check(study.task.shape())
            assert has_convolution(mixer.spec()) == (preset != "capacity-no-conv"), word


def test_the_capacity_preset_shows_at_least_16k_tokens_per_step_and_nothing_but_recall_answers() -> None:
    study = configure(InContext, "capacity", {})
    assert study.train.micro_batch_size * study.task.shape().length >= 16_384
    assert {part.floor() for part in study.task.parts()} == {1 / size for size in (4, 8, 16, 32, 64, 128, 256)}
    assert study.model.num_layers == 1 and study.model.state_mixer.name == "none" and study.model.tied


@pytest.mark.parametrize(
    ("word", "convolved"),
    [
        ("delta_net", True),
        ("delta_net:conv=0", False),
        ("hybrid:pattern=attention+delta_net", True),
        ("hybrid:pattern=attention+(delta_net:conv=0)", False),
        ("hybrid:pattern=attention+(delta_net:conv=0):conv=4", True),
        ("hybrid:pattern=attention+(hybrid:pattern=mamba2)", True),
        ("hybrid:pattern=base_conv+attention", True),
    ],
)
def test_a_hybrid_has_the_convolutions_of_its_members(word: str, convolved: bool) -> None:
    assert has_convolution(mixers.parse(word).spec()) is convolved


def published(wrong: int = 0) -> list[Record]:
    """Records of zoology's mixers whose accuracies have the published order, but for neighbours that trade places."""
    order = list(PUBLISHED)
    for place in range(wrong):
        order[2 * place : 2 * place + 2] = reversed(order[2 * place : 2 * place + 2])
    return [
        record(ZOOLOGY[name], seed, RECALLS, accuracy=0.9 - 0.1 * place)
        for place, name in enumerate(order)
        for seed in range(5)
    ]


def test_the_order_of_zoology_is_compared_by_kendalls_tau() -> None:
    assert kendall_tau([(1, 1), (2, 2), (3, 3)]) == 1 == -kendall_tau([(1, 3), (2, 2), (3, 1)])
    assert kendall_tau([(1, 1), (2, 3), (3, 2), (4, 4)]) == pytest.approx(4 / 6)
    for wrong, tau in ((0, 1.0), (2, 11 / 15), (3, 9 / 15)):
        found = order_agreement(published(wrong))
        assert found == {seed: pytest.approx(tau) for seed in range(5)}
    assert order_agreement(published()[5:]) is None, "a mixer is missing"


def test_the_claim_plans_six_mixers_at_four_rates_and_five_seeds_each_an_arm_of_its_own() -> None:
    claim = CLAIMS["zoology-recall"]
    grid = combined_grid(InContext, claim.preset, claim.grid, named=claim.options)
    runs = make_plan(configure(InContext, claim.preset, dict(claim.options)), grid, Numerics()).runs
    assert claim.certificate is not None
    arms = [[run for run in runs if has_options(run, arm)] for arm in claim.certificate.arms]
    assert [len(arm) for arm in arms] == [20] * 6
    assert not any(has_options(run, {"model.seq_mixer.pattern.7": "delta_net"}) for run in runs)
    states = [4 * configure_model(arm[0]).state_size(1024) for arm in arms]
    assert all(15_000 < state < 40_000 for state in states), states


def configure_model(run: Run) -> Any:
    model = run.options["model"]
    mixer = mixers.load(model["seq_mixer"])
    return SimpleNamespace(state_size=lambda length: mixer.state_size(model["model_dim"], length))
