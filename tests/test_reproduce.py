"""Published claims: well formed, reproduced, and missed aloud."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from assay.api import Execution
from assay.command.reproduce import devices_of, known_claims, session_of
from assay.core.errors import UserError
from assay.core.store import Store
from assay.metrics.intervals import Interval
from assay.report.claims import Check, Claim, Verdict, decided, worst
from assay.studies.sae.claims import CLAIMS as SAE

TOY = Path(__file__).parent / "toy.py"
TOY_CLAIMS = Path(__file__).parent / "sixth_study.py"
Cli = Callable[..., tuple[int, str, str]]
SQUARES = {
    "claim": "Two squared is four.",
    "source": "Euclid",
    "study": "toy",
    "options": {"seeds": [0, 1]},
    "grid": {"xs": [[1], [2]]},
    "checks": [
        {"what": "the square of 2", "metric": "square", "rows": {"x": 2}, "over": "max", "target": 4, "tolerance": 0.2}
    ],
}


@pytest.fixture
def claims(cli: Cli, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Run the claim about squares, its check changed."""

    def call(*words: str, **changed: Any) -> tuple[int, str, str]:
        check = {key: value for key, value in {**SQUARES["checks"][0], **changed}.items() if value is not None}  # type: ignore[dict-item]
        path = tmp_path / "claims.json"
        path.write_text(json.dumps({"squares": {**SQUARES, "checks": [check]}}))
        where = ["--file", path, "--out", tmp_path / "out", "--executor", "serial", "--plugin", TOY]
        return cli("reproduce", *(words or ("squares",)), *where)

    return call


@pytest.mark.parametrize("name", known_claims())
def test_every_claim_is_planned_with_a_setting_of_three_seeds_behind_each_check(name: str, tmp_path: Path) -> None:
    """One seed where nothing is drawn: a language model that is there already, on a text."""
    claimed: Claim = known_claims()[name]
    assert claimed.claim.endswith(".") and claimed.source and claimed.checks
    session = session_of(claimed, Execution(out=tmp_path, device="cpu"))
    for check in claimed.checks:
        seeds = {run.seed for run in check.chosen(session.plan.runs)}
        assert seeds == {42} if claimed.study == "perplexity" else len(seeds) >= 3, check.what
    with pytest.raises(UserError, match="choose no run of the plan"):
        replace(claimed.checks[0], rows={"model.seq_mixer": "elephant"}).chosen(session.plan.runs)


def test_the_claim_about_llamacpp_is_what_llamacpp_gave() -> None:
    golden = json.loads((Path(__file__).parent / "golden" / "smollm2_llamacpp.json").read_text())
    for shard, check in enumerate(known_claims()["smollm2-llamacpp"].checks):
        mine = [one for one in golden["windows"] if one["cluster"] % 2 == shard]
        loss = sum(one["nll"] for one in mine) / sum(one["tokens"] for one in mine)
        assert check.target == pytest.approx(math.exp(loss), abs=1e-4)
        assert check.tolerance == pytest.approx(0.01 * math.exp(loss), abs=1e-3)


def test_without_a_name_there_is_a_list_with_sources(cli: Cli) -> None:
    code, out, _ = cli("reproduce")
    assert code == 0 and "arXiv 2411.12537" in out
    assert [line.partition(":")[0] for line in out.splitlines()[::3]] == list(known_claims())


@pytest.mark.slow
def test_least_squares_in_context_is_reproduced_and_then_read_from_the_store(cli: Cli, tmp_path: Path) -> None:
    words = ["reproduce", "regression-ols", "--out", tmp_path, "--device", "cpu", "--executor", "serial"]
    code, out, err = cli(*words)
    assert code == 0 and out.count("  reproduced  ") == 4, out + err
    assert set(out.partition("records: ")[2].split()) == {record.run.id for record in Store(tmp_path).records("icl")}
    again = cli(*words)
    assert again[:2] == (0, out) and "16 stored, nothing to run" in again[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_parity_needs_negative_eigenvalues(cli: Cli, tmp_path: Path) -> None:
    """The delta rules of the claim, asked at every position and in 300 steps of a larger rate: far from its recipe, and
    so without a certificate: the numbers come out."""
    claim = replace(known_claims()["parity-eigenvalues"], certificate=None)
    given = {key: value for key, value in asdict(claim).items() if value not in (None, "", {}, ())}
    given["checks"] = [{k: v for k, v in check.items() if v is not None} for check in given["checks"][:2]]
    given["grid"] = {"model.seq_mixer": [f"delta_net:num_heads=4:beta_max={most}:conv=0" for most in (1, 2)]}
    given["options"] |= {
        "task": "state_tracking:group=parity:length=40",
        "model": {"state_mixer": "none", "model_dim": 32, "num_layers": 1, "positions": "none"},
        "train": {"max_steps": 300, "micro_batch_size": 32, "validate_every": 150},
        "optimizer": {"lr": 0.01},
    }
    path = tmp_path / "claims.json"
    path.write_text(json.dumps({"parity": given}))
    code, out, err = cli("reproduce", "parity", "--file", path, "--out", tmp_path, "--device", "cpu")
    assert code == 0 and out.count("  reproduced  ") == 2 and "recipe: not asked, not looked at" in out, out + err


def test_a_claim_that_holds_is_said_with_its_seeds_and_records(claims: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = claims()
    assert code == 0 and "  reproduced      the square of 2: max of 2 seeds 4.1 (4 4.1), wanted 4 ± 0.2\n" in out
    assert "    seeds: fails, 2, all as wanted: with 95 % confidence fewer than 78% of all seeds are not\n" in out
    assert len(out.partition("records: ")[2].split()) == 2
    assert claims("all")[1] == out


@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_a_claim_is_run_with_its_certificate_which_widens_its_grid_unless_it_has_to_be_quick(
    cli: Cli, tmp_path: Path, quick: list[str]
) -> None:
    """The square grows with the number: the best of any grid is at its edge."""
    certificate = {
        "about": "squares",
        "metric": "square",
        "tried": {"x": [1, 2]},
        "on": {"seeds": [0, 1]},
        "longer": {"seeds": [0, 1, 2]},
        "number": {**SQUARES["checks"][0], "rows": {"x": 2}},  # type: ignore[dict-item]
        "goal": False,
    }
    path, where = tmp_path / "claims.json", ["--out", tmp_path / "out", "--executor", "serial", "--plugin", TOY]
    chooses = {**SQUARES, "options": {"seeds": [0, 1]}, "grid": {"x": [1, 2]}, "certificate": certificate}
    path.write_text(json.dumps({"squares": chooses}))
    code, out, err = cli("reproduce", "squares", "--file", path, *where, *quick)
    assert code == 1 and "not converged: says nothing about squares" in out, out + err
    tried = {record.run.options["x"] for record in Store(tmp_path / "out").records("toy")}
    assert tried == ({1, 2} if quick else {1, 2, 3, 10, 30})
    assert ("runs of other recipes are not stored" in out) == bool(quick) or "at an edge of x" in out


def test_tables_that_a_claim_names_stand_under_its_checks(cli: Cli, tmp_path: Path) -> None:
    path, where = tmp_path / "claims.json", ["--out", tmp_path / "out", "--executor", "serial", "--plugin", TOY]
    path.write_text(json.dumps({"squares": {**SQUARES, "tables": ["squares"]}}))
    code, out, _ = cli("reproduce", "squares", "--file", path, *where)
    table = out.partition("records: ")[2].splitlines()[1:]
    assert code == 0 and table[1].split() == ["x", "square"] and len(table) == 3 + 4
    path.write_text(json.dumps({"squares": {**SQUARES, "tables": ["sqares"]}}))
    code, _, err = cli("reproduce", "squares", "--file", path, *where)
    assert code == 2 and "has no table 'sqares'. Did you mean 'squares'?" in err


@pytest.mark.usefixtures("hasty", "undrawn")
def test_the_ablations_table_has_the_controls_in_it(cli: Cli, tmp_path: Path) -> None:
    """As claimed, but on the digits, for two epochs and with one seed; whether checks are met is for a GPU to say."""
    claimed = {key: value for key, value in asdict(SAE["implicit-em-ablation"]).items() if key != "preset"}
    claimed["checks"] = [{k: v for k, v in check.items() if v is not None} for check in claimed["checks"]]
    short = {**claimed["options"], "dataset": "digits", "epochs": 2, "seeds": [0], "output_dir": str(tmp_path)}
    path = tmp_path / "claims.json"
    path.write_text(json.dumps({"ablation": {**claimed, "options": short}}))
    where = ["--out", tmp_path, "--device", "cpu", "--executor", "serial"]
    _, out, err = cli("reproduce", "ablation", "--file", path, *where)
    rows = [line.split()[0] for line in out.partition("records: ")[2].splitlines()[4:12] if line]
    assert rows[:4] == ["lse_only", "lse_var", "lse_var_tc", "var_tc_only"], out + err
    assert rows[4:] == ["relu_l1:l1=0.01:form=spec", "topk", "fast_ica", "pca"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"target": 5}, "max of 2 seeds 4.1 (4 4.1), wanted 5 ± 0.2"),
        ({"over": "min", "target": None, "tolerance": None, "at_least": 4.01}, "min of 2 seeds 4"),
        ({"over": "max", "target": None, "tolerance": None, "at_most": 4.09}, "max of 2 seeds 4.1"),
        ({"metric": "cube"}, "cube is there for 0 of 2 seeds"),
    ],
)
def test_a_check_that_misses_says_so_and_exits_with_1(
    claims: Callable[..., tuple[int, str, str]], changed: dict[str, Any], said: str
) -> None:
    code, out, _ = claims(**changed)
    assert code == 1 and "  not reproduced  the square of 2: " in out and said in out


def test_a_seed_that_failed_is_a_miss_with_its_reason(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x=2").write_text("raise")  # the first seed fails, the second does not
    path = tmp_path / "claims.json"
    path.write_text(json.dumps({"squares": {**SQUARES, "options": {"trap": str(tmp_path)}}}))
    where = ["--file", path, "--out", tmp_path / "out", "--executor", "serial", "--plugin", TOY]
    code, out, err = cli("reproduce", "squares", *where)
    assert code == 1 and "no record       the square of 2: 1 of 2 runs failed" in out
    assert "ValueError: trapped at 2" in err


@pytest.mark.parametrize(
    ("words", "changed", "said"),
    [
        (["sqares"], {}, "Did you mean 'squares'?"),
        (["squares"], {"rows": {}}, "choose runs of several settings"),
        (["squares"], {"rows": {"x": 3}}, "choose no run"),
        (["squares"], {"at_most": 3}, "give one of at_least, at_most, or target"),
        (["squares"], {"tolerance": None}, "target with its tolerance"),
        (["squares"], {"metrik": "x"}, "Did you mean 'metric'?"),
        (["squares", "--workers", "-1"], {}, "--workers -1"),
        (["squares", "--workers", "many"], {}, "argument --workers: invalid int value: 'many'."),
        (["squares", "--devise", "cpu"], {}, "no flag '--devise'. Did you mean '--device'?"),
    ],
)
def test_a_wrong_word_or_claim_is_one_message_before_anything_is_computed(
    claims: Callable[..., tuple[int, str, str]], tmp_path: Path, words: list[str], changed: dict[str, Any], said: str
) -> None:
    code, out, err = claims(*words, **changed)
    assert code == 2 and out == "" and said in err and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_file_of_claims_that_is_absent_is_named(cli: Cli) -> None:
    code, _, err = cli("reproduce", "--file", "absent.json")
    assert code == 2 and "cannot read claims from 'absent.json'" in err


def met(value: float, **wanted: float) -> bool:
    check = Check(what="", metric="m", over="max", **wanted)  # type: ignore[arg-type]
    return decided(check, Interval(float(value), None, None, 1)).word == "reproduced"


def test_bounds_are_inclusive() -> None:
    assert met(1, at_least=1) and not met(0.99, at_least=1)
    assert met(1, at_most=1) and not met(1.01, at_most=1)
    assert met(0.5, target=1, tolerance=0.5) and met(1.5, target=1, tolerance=0.5)
    assert not met(1.51, target=1, tolerance=0.5)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Interval(1.2, 1.1, 1.3, 5), "reproduced"),
        (Interval(0.8, 0.7, 0.9, 5), "not reproduced"),
        (Interval(1.1, 0.9, 1.3, 5), "undecided: about 18 more seeds would tell"),
        (Interval(1.0, 0.9, 1.1, 5), "undecided"),
        (Interval(1.2, 1.01, 1.39, 5), "undecided: about 2 more seeds would tell"),
    ],
)
def test_the_whole_interval_has_to_lie_on_one_side_and_otherwise_seeds_are_asked_for(
    found: Interval, verdict: str
) -> None:
    """Half width .2 at five seeds: 23 find an interval around 1.1 that excludes the limit four times out of five. An
    interval that barely excludes it would not be found again as often."""
    assert str(decided(Check(what="", metric="m", at_least=1), found)) == verdict


def test_a_claim_is_judged_by_its_worst_check() -> None:
    found = [Verdict("reproduced"), Verdict("undecided", 3), Verdict("undecided", 9)]
    assert worst(found) == Verdict("undecided", 9)
    assert worst([*found, Verdict("not reproduced")]).word == "not reproduced"
    assert worst([Verdict("not reproduced"), Verdict("no record")]).word == "no record"


def test_findings_are_judged_from_the_store_and_a_deleted_record_is_no_record(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--plugin", TOY_CLAIMS, "--out", tmp_path / "out"]
    # The claims that ship take seconds to judge, and are judged elsewhere (tests/test_findings.py).
    own = {"counting"}
    monkeypatch.setattr(
        "assay.command.findings.known_claims",
        lambda: {name: claim for name, claim in known_claims().items() if claim.study in own},
    )
    said = json.loads(cli("findings", "--json", *where)[1])
    assert {one["name"]: one["verdict"] for one in said}["two-squared"] == "no record"
    assert cli("reproduce", "two-squared", *where, "--executor", "serial")[0] == 0
    code, out, _ = cli("findings", "--json", *where)
    (found,) = [one for one in json.loads(out) if one["name"] == "two-squared"]
    assert code == 0 and found["verdict"] == "reproduced" and found["records"] == 2
    code, out, _ = cli("findings", "two-squared", *where)
    assert code == 0 and out.startswith("## two-squared\n") and "**reproduced**" in out and "Certificate:" in out
    code, _, err = cli("findings", "two-square", *where)
    assert code == 2 and "no claim 'two-square'. Did you mean 'two-squared'?" in err
    assert "name none" in cli("findings", "two-squared", *where, "--page", tmp_path / "x.md")[2]
    assert cli("findings", *where, "--page", tmp_path / "FINDINGS.md")[0] == 0
    text = (tmp_path / "FINDINGS.md").read_text()
    assert "| **reproduced** | max of 2 seeds 4.1 (4 4.1) | 4 ± 0.2 |" in text
    first = next(record for record in Store(tmp_path / "out").records("counting") if record.run.options["x"] == 2)
    assert cli("rm", first.run.id, *where)[0] == 0
    (found,) = [one for one in json.loads(cli("findings", "--json", *where)[1]) if one["name"] == "two-squared"]
    assert found["verdict"] == "no record" and "1 of 2 runs are not stored" in found["checks"][0]["found"]


def test_the_devices_of_what_ships_are_known_before_anything_is_computed(tmp_path: Path) -> None:
    claim = known_claims()["regression-ols"]
    session = session_of(claim, Execution(out=tmp_path, device="cpu"))
    assert devices_of(claim, session) == {"cuda"} and len(session.todo) == 16
