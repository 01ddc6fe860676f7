"""The flags of every study command: presets with grids, words in any order, old names, wandb, choices and help."""

import itertools
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import assay
from assay.core.errors import UserError

Cli = Callable[..., tuple[int, str, str]]
CliJson = Callable[..., Any]

SHELF = '''
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from assay.core.run import Record, Run
from assay.core.study import Context, Outcome, Report, Study
from assay.mixers import mixers
from assay.mixers.base import Mixer
from assay.studies import studies


@dataclass(frozen=True)
class Shape:
    mixer: Mixer = field(default_factory=lambda: mixers.parse("attention"))
    width: int = 8


@studies.register("shelf")
@dataclass(frozen=True, kw_only=True)
class Shelf(Study):
    """A mixer, a width, a rate."""

    question = "Which?"
    presets = {
        "wide": {
            "size": 7,
            "grid": {"shape.mixer": ["attention", "gru"], "rate": ["0.1", "0.2"], "seed": ["0", "1"]},
        },
        "shapes": {"grid": {"shape": [Shape(width=1), Shape(width=2)]}},
        "heads": {"grid": {"shape.mixer.num_heads": ["1", "2"]}},
    }
    renamed = {"shape.mixer.size": "size", "old_rate": "rate"}

    shape: Shape = field(default_factory=Shape)
    rate: float = 0.5
    size: int = 3
    seeds: tuple[int, ...] = (0,)

    def plan(self) -> list[Run]:
        return [self.cell(seed=seed, shape=self.shape, rate=self.rate, size=self.size) for seed in self.seeds]

    def execute(self, runs: Sequence[Run], ctx: Context) -> Iterator[Outcome]:
        for run in list(runs):
            ctx.progress(run, 5, 20, loss=0.5)
            ctx.progress(run, 10, 20, loss=0.25)
            if run.seed == 13:
                raise ValueError("unlucky")
            yield Outcome(run, {"loss": 0.25, "by": {"first": 1}, "solved": True, "curve": [1, 2], "note": "text"})

    def report(self, records: Sequence[Record], out: Report) -> None:
        out.table("shelf", [{"rate": r.run.options["rate"]} for r in records])
'''


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    path = tmp_path / "shelf.py"
    path.write_text(SHELF)
    return path


@pytest.fixture
def planned(cli: Cli, shelf: Path, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """The options and seed of every run a command line plans."""
    from assay.core.plan import Plan

    plans: list[Plan] = []

    def call(*words: str) -> list[dict[str, Any]]:
        from assay import study_command

        def keep(session: Any, *, as_json: bool) -> int:
            plans.append(session.plan)
            return 0

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(study_command, "_print_plan", keep)
            code, _, err = cli("shelf", "--plugin", shelf, "--dry-run", "--out", tmp_path / "results", *words)
        assert code == 0, err
        return [{**run.options, "seed": run.seed} for run in plans.pop().runs]

    return call


def values(runs: list[dict[str, Any]], *keys: str) -> set[tuple[Any, ...]]:
    def at(run: dict[str, Any], key: str) -> Any:
        held: Any = run
        for part in key.split("."):
            held = held.get(part)
        return held

    return {tuple(at(run, key) for key in keys) for run in runs}


MIXER = "shape.mixer.name"


def test_a_presets_grid_is_where_the_command_starts(planned: Callable[..., Any]) -> None:
    runs = planned("--preset", "wide")
    assert len(runs) == 8 and values(runs, "size") == {(7,)}
    expected = set(itertools.product(("attention", "gru"), (0.1, 0.2), (0, 1)))
    assert values(runs, MIXER, "rate", "seed") == expected


def test_ones_own_grid_replaces_the_axis_of_that_key_and_adds_others(planned: Callable[..., Any]) -> None:
    runs = planned("--preset", "wide", "--grid", "seeds=5", "rate=0.3,0.4", "shape.width=1,2")
    expected = set(itertools.product(("attention", "gru"), (0.3, 0.4), (5,), (1, 2)))
    assert values(runs, MIXER, "rate", "seed", "shape.width") == expected and len(runs) == 8


def test_axes_may_come_in_several_grids(planned: Callable[..., Any]) -> None:
    runs = planned(
        "--grid", "rate=0.3,0.4", "--shape.width", "2", "--grid=size=1,2", "--grid", "seeds=5", "shape.mixer:gru"
    )
    assert values(runs, "rate", "size", "seed") == set(itertools.product((0.3, 0.4), (1, 2), (5,)))
    assert values(runs, MIXER, "shape.width") == {("gru", 2)}


@pytest.mark.parametrize(
    ("words", "key", "left"),
    [
        (["--rate", "0.7"], "rate", 0.7),
        (["--old-rate=0.7"], "rate", 0.7),
        (["shape.mixer:delta_net"], MIXER, "delta_net"),
        (["--shape.mixer", "delta_net"], MIXER, "delta_net"),
        (["--seeds", "4"], "seed", 4),
    ],
)
def test_to_name_the_option_of_an_axis_drops_the_axis(
    planned: Callable[..., Any], words: list[str], key: str, left: Any
) -> None:
    runs = planned("--preset", "wide", *words)
    assert len(runs) == 4 and values(runs, key) == {(left,)}


def test_options_below_an_axis_are_set_on_every_value_that_has_them(planned: Callable[..., Any]) -> None:
    both = {("attention", 2), ("gru", None)}
    words = ["--rate", "1", "--seeds", "0", "--shape.mixer.num_heads", "2"]
    assert values(planned("--preset", "wide", *words), MIXER, "shape.mixer.num_heads") == both
    own = planned("--grid", "shape.mixer=attention,gru", *words)
    assert values(own, MIXER, "shape.mixer.num_heads") == both
    assert values(planned("--preset", "shapes", "--shape.mixer.conv", "3"), "shape.width", "shape.mixer.conv") == {
        (1, 3),
        (2, 3),
    }
    assert values(planned("--preset", "shapes", "--shape.mixer", "gru"), "shape.width", MIXER) == {
        (1, "gru"),
        (2, "gru"),
    }


def test_an_option_below_two_axes_goes_to_the_inner_one(planned: Callable[..., Any]) -> None:
    runs = planned("--preset", "shapes", "--grid", "shape.mixer=attention,gru", "--shape.mixer.num_heads", "2")
    expected = set(itertools.product((1, 2), (("attention", 2), ("gru", None))))
    found = values(runs, "shape.width", MIXER, "shape.mixer.num_heads")
    assert found == {(width, *mixer) for width, mixer in expected}


def test_a_bare_option_of_a_plugin_does_not_swallow_the_word_after_it(planned: Callable[..., Any]) -> None:
    runs = planned("--shape.mixer.tie_qk", "shape.mixer:linear_attention", "--seeds", "0")
    assert values(runs, MIXER, "shape.mixer.tie_qk") == {("linear_attention", True)}


def test_to_name_what_holds_an_axis_drops_the_axis(planned: Callable[..., Any]) -> None:
    assert values(planned("--preset", "heads"), "shape.mixer.num_heads") == {(1,), (2,)}
    assert values(planned("--preset", "heads", "shape.mixer:gru"), MIXER) == {("gru",)}
    assert values(planned("--preset", "heads", "--grid", "shape.mixer=gru,delta_net"), MIXER) == {
        ("gru",),
        ("delta_net",),
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--preset", "wide", "--shape.mixer.num_haeds", "2"], "Did you mean 'num_heads'"),
        (["--grid", "seed=0", "seeds=1"], "put all its values into one axis"),
        (["--choices", "--json"], "leave --json out"),
        (["shape.mixer:gru", "--rate", "1", "shape.mixer:gru"], "shape.mixer is chosen 2 times: choose one"),
        (["--shape.mixer=gru", "shape.mixer:based"], "or compare with --grid shape.mixer=A,B"),
        (["--grid", "shape.width=1", "siz=2"], "no option 'siz'. Did you mean 'size'"),
        (["shape.mixer:atention", "--help"], "Did you mean 'attention'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_remedy(cli: Cli, shelf: Path, words: list[str], said: str) -> None:
    code, out, err = cli("shelf", "--plugin", shelf, "--dry-run", *words)
    assert code == 2 and out == "" and said in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--shpe.mixer.num_heads", "Did you mean '--shape.mixer.num_heads'"),
        ("shap.mixer:gru", "Did you mean 'shape.mixer'"),
        ("wnadb:on", "Did you mean 'wandb'"),
        ("--shape.widht", "--shape.width"),
        ("--seedz", "Did you mean '--seeds'"),
        ("--siez=3", "Did you mean '--size'"),
        ("--wdth", "Did you mean '--shape.width'"),
        ("--tiemout", "Did you mean '--timeout_per_run'"),
        ("--zzzz", "no flag '--zzzz'. `assay shelf --help`"),
    ],
)
def test_unknown_flags_and_words_name_the_nearest(cli: Cli, shelf: Path, word: str, said: str) -> None:
    code, out, err = cli("shelf", "--plugin", shelf, word, "3")
    assert code == 2 and out == "" and said in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("study", "flag", "meant"),
    [
        ("perplexity", "--sparsty", "'--sparsity_levels', '--fixed_sparsity' or '--no_sparsity_sweep'"),
        ("perplexity", "--quick-tset", "'--quick-test'"),
        ("icl", "--max_stps", "'--train.max_steps'"),
        ("sae", "--seds", "'--seeds'"),
        ("modular sweep", "--dimension", "'--dimensions'"),
        ("expressivity", "--model", "'--models'"),
    ],
)
def test_every_study_names_what_a_flag_may_have_meant(cli: Cli, study: str, flag: str, meant: str) -> None:
    code, _, err = cli(*study.split(), flag, "3")
    assert code == 2 and f"Did you mean {meant}?" in err


def test_several_plugins_of_one_field_stand_after_one_flag(cli: Cli) -> None:
    code, _, err = cli("expressivity", "--models", "gru", "--models", "self_attn", "--dry-run")
    assert code == 2 and "models is chosen 2 times: name them all after one --models" in err


def test_the_same_presets_work_from_python(shelf: Path, tmp_path: Path) -> None:
    def ran(**options: Any) -> set[tuple[Any, ...]]:
        found = assay.run(
            "shelf", preset="wide", plugins=[shelf], executor="serial", device="cpu", out=tmp_path, **options
        )
        return values([{**record.run.options, "seed": record.run.seed} for record in found], MIXER, "rate", "seed")

    assert ran() == set(itertools.product(("attention", "gru"), (0.1, 0.2), (0, 1)))
    assert ran(seeds=(3,), grid={"rate": [0.9]}) == {("attention", 0.9, 3), ("gru", 0.9, 3)}
    with pytest.raises(UserError, match="no option 'grid'"):
        from assay.api import configure
        from assay.core.plugin import registries

        configure(registries()["studies"]["shelf"], None, {"grid": {}})


def test_old_names_of_flags_still_set_todays_option(planned: Callable[..., Any], cli_json: CliJson) -> None:
    for words in (["--shape.mixer.size", "9"], ["--shape.mixer.size=9"], ["--grid", "shape.mixer.size=9"]):
        assert values(planned(*words), "size") == {(9,)}
    icl = ["icl", "--dry-run", "--device", "cpu"]
    assert cli_json(*icl, "--task.eval_size", "500") == cli_json(*icl, "--eval_size", "500") != cli_json(*icl)


def test_words_and_flags_of_the_spec_come_in_any_order(cli_json: CliJson, tmp_path: Path) -> None:
    parts = [
        ["wandb:None"], ["task:mqar"], ["model.seq_mixer:attention"], ["model.state_mixer:mlp"], ["--seeds", "0", "1"],
        ["--task.num_kv_pairs", "4"], ["--optimizer.lr", "3e-3"], ["--model.seq_mixer.num_heads=2"],
        ["--out", str(tmp_path)], ["--device", "cpu"], ["--dry-run"],
    ]  # fmt: skip
    rng = random.Random(0)
    plans = [cli_json("icl", *itertools.chain(*rng.sample(parts, len(parts)))) for _ in range(8)]
    ids = [[row["id"] for row in plan["rows"]] for plan in plans]
    assert len(set(ids[0])) == len(ids[0]) >= 2 and all(found == ids[0] for found in ids)
    plain = cli_json("icl", *itertools.chain(*parts[1:]))
    assert [row["id"] for row in plain["rows"]] == ids[0]


class FakeRun:
    def __init__(self, given: dict[str, Any]) -> None:
        self.given, self.rows, self.summary = given, list[tuple[int, dict[str, Any]]](), dict[str, Any]()
        self.exit_code: int | None = None

    def log(self, row: dict[str, Any], step: int, commit: bool) -> None:
        assert self.exit_code is None and commit  # W&B writes a row left open over the summary when the run ends
        self.rows.append((step, row))

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


class FakeWandb(ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[FakeRun] = []
        self.fails_at = -1

    def init(self, **given: Any) -> FakeRun:
        if len(self.runs) == self.fails_at:
            raise ConnectionError("no API key configured")
        self.runs.append(FakeRun(given))
        return self.runs[-1]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.mark.parametrize("words", [["wandb:on"], ["--wandb", "on"]])
def test_wandb_gets_one_run_per_run_with_its_progress_and_final_numbers(
    cli: Cli, shelf: Path, tmp_path: Path, wandb: FakeWandb, words: list[str]
) -> None:
    command = ["shelf", "--plugin", shelf, *words, "--seeds", "0", "13", "--executor", "serial", "--out", tmp_path]
    code, _, err = cli(*command)
    assert code == 1 and "unlucky" in err  # seed 13 fails, and is told to W&B as failed
    done, failed = wandb.runs
    assert done.given["project"] == "assay-shelf" and done.given["reinit"] == "create_new"
    assert done.given["name"] == "shelf attention seed=0" and done.given["id"] in cli("show", "--out", tmp_path)[1]
    assert done.given["config"]["rate"] == 0.5 and done.given["config"]["seed"] == 0
    assert done.rows == [(5, {"loss": 0.5}), (10, {"loss": 0.25})]
    assert done.summary == {"loss": 0.25, "by.first": 1}
    assert (done.exit_code, failed.exit_code) == (0, 1) and failed.given["config"]["seed"] == 13


@pytest.mark.parametrize("word", ["wandb:None", "wandb:none", "--wandb=None"])
def test_wandb_is_off_unless_asked_for_and_no_part_of_an_id(
    cli: Cli, shelf: Path, tmp_path: Path, wandb: FakeWandb, word: str
) -> None:
    command = ["shelf", "--plugin", shelf, "--executor", "serial", "--out", tmp_path]
    assert cli(*command, word)[0] == 0 and wandb.runs == []
    assert "1 stored, nothing to run" in cli(*command, "wandb:on")[2] and wandb.runs == []


def test_wandb_missing_or_without_a_login_is_said_before_anything_is_computed(
    cli: Cli, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wandb: FakeWandb
) -> None:
    command = ["shelf", "wandb:on", "--plugin", shelf, "--executor", "serial", "--out", tmp_path / "results"]
    wandb.fails_at = 0
    code, _, err = cli(*command, "--quiet")
    assert code == 2 and "no API key configured. Mend that, set WANDB_MODE=offline" in err
    for missing in (None, ModuleType("wandb")):  # not installed, and a folder of that name
        monkeypatch.setitem(sys.modules, "wandb", missing)
        code, out, err = cli(*command)
        assert code == 2 and out == ""
        assert err == "assay: wandb:on needs the package wandb: pip install 'assay-bench[wandb]', or leave it out.\n"
    assert not (tmp_path / "results").exists()


def test_a_connection_lost_on_the_way_stops_the_log_and_not_the_runs(
    cli: Cli, shelf: Path, tmp_path: Path, wandb: FakeWandb
) -> None:
    wandb.fails_at = 1
    code, _, err = cli(
        "shelf", "wandb:on", "--plugin", shelf, "--seeds", "0..2", "--executor", "serial", "--out", tmp_path
    )
    assert code == 0 and len(wandb.runs) == 1 and err.count("nothing more goes to Weights & Biases") == 1
    assert cli("show", "--out", tmp_path)[1].count(" done ") == 3


def test_an_interrupted_log_closes_what_is_open(toy: Any, wandb: FakeWandb) -> None:
    from assay.wandb_log import logged

    runs = toy(xs=(1, 2)).plan()
    with pytest.raises(KeyboardInterrupt), logged(print, runs, {run.id: "label" for run in runs}):
        raise KeyboardInterrupt
    assert [run.exit_code for run in wandb.runs] == [1]


def test_choices_lists_every_word_in_panels_80_columns_wide(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.core.plugin import registries

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, _ = cli("icl", "--choices")
    lines = out.splitlines()
    assert code == 0 and "\x1b" not in out and {len(line) for line in lines} == {80}
    fields = {"task": "tasks", "model.seq_mixer": "mixers", "model.state_mixer": "state_mixers"}
    titles = [line for line in lines if line.startswith("╭")]
    assert [title.split()[1] for title in titles] == list(fields) and all(" choices ─" in title for title in titles)
    for path, folder in fields.items():
        for name in registries()[folder].names():
            assert f"│     {path}:{name} ".ljust(79) + "│" in lines
    first = lines[: lines.index(titles[1])]
    assert first[1].startswith("│ (default: task:mqar) ") and set(first[2]) == set("│ ─")
    assert first[3].startswith("│ [{task:") and first[-1].startswith("╰")


def test_choices_shows_what_a_preset_chooses_and_plugins_of_ones_own(cli: Cli, shelf: Path) -> None:
    assert "(default: shape.mixer:attention)" in cli("shelf", "--plugin", shelf, "--choices")[1]
    assert "(default: none named)" in cli("expressivity", "--choices")[1]


def test_help_after_any_words_lists_the_options_of_the_plugins_chosen(cli: Cli) -> None:
    code, out, _ = cli("icl", "task:mqar", "model.seq_mixer:attention", "--task.num_kv_pairs", "4", "--help")
    assert code == 0 and "--preset NAME" in out and "Presets: " in out and "task:mqar is --task mqar" in out
    end = out.partition("options of the chosen plug-ins:")[2]
    assert "task mqar: --task." in end and "--task.num_kv_pairs 8" in end and "--model.seq_mixer.num_heads" in end
    chosen = cli("icl", "-h", "task:boolean", "model.seq_mixer:gru")[1].partition("options of the chosen plug-ins:")[2]
    assert "task boolean: " in chosen and "model.seq_mixer gru: " in chosen and "num_kv_pairs" not in chosen
    assert "model.state_mixer mlp: " in chosen
    code, out, _ = cli("expressivity", "--models", "gru", "self_attn:heads=4", "--help")
    assert code == 0 and "models gru: " in out and "--models.heads 4" in out


def test_dry_run_shows_a_presets_grid(cli: Cli, shelf: Path, tmp_path: Path) -> None:
    code, out, _ = cli("shelf", "--plugin", shelf, "--preset", "wide", "--dry-run", "--json", "--out", tmp_path)
    labels = [row["run"] for row in json.loads(out)["rows"]]
    assert code == 0 and "shelf gru rate=0.2 seed=1" in labels and len(labels) == 8
