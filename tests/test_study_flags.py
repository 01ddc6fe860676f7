"""The flags of every study command: presets with grids, words in any order, old names, switches."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import assay
from assay.core.errors import UserError
from assay.core.plugin import Plugin, registries
from assay.core.study import Study

Cli = Callable[..., tuple[int, str, str]]
CliJson = Callable[..., Any]


@pytest.fixture
def planned(cli: Cli, shelf: Path, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """The options and seed of every run a command line plans."""
    from assay.core.plan import Plan

    plans: list[Plan] = []

    def call(*words: str) -> list[dict[str, Any]]:
        from assay.command import study_command

        def keep(session: Any, shell: object) -> int:
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
        (["--grid", "mixer=gru,based"], "no option 'mixer'. Did you mean 'shape.mixer'? It has: "),
        (["--grid", "num_heads=1,2"], "no option 'num_heads'. Did you mean 'shape.mixer.num_heads'? It has: "),
        (["--seeds", "0-2"], "--seeds: expected int, got '0-2'. A range is 0..2."),
        (["--grid", "seed=0-2"], "got '0-2'. A range is 0..2."),
        (["shape.mixer:atention", "--help"], "Did you mean 'attention'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_remedy(cli: Cli, shelf: Path, words: list[str], said: str) -> None:
    code, out, err = cli("shelf", "--plugin", shelf, "--dry-run", *words)
    assert code == 2 and out == "" and said in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["--grid", "rate=1,2", "--rate", "3"], "'rate'"),
        (["--rate=3", "--grid=rate=1,2"], "'rate'"),
        (["--grid", "old_rate=1,2", "--rate", "3"], "'rate' is an axis of the grid and an option too (as 'old_rate'"),
        (["--grid", "rate=1,2", "--old-rate", "3"], "'rate'"),
        (["--grid", "seed=1,2", "--seeds", "3"], "'seeds'"),
        (["--grid", "seeds=1,2", "--seeds", "3"], "'seeds'"),
        (["--grid", "shape.bias=true,false", "--shape.no_bias"], "'shape.bias'"),
        (["--grid", "shape.width=1,2", "--shape.width", "3"], "'shape.width'"),
        (["--grid", "shape.mixer=gru,based", "shape.mixer:attention"], "'shape.mixer'"),
        (["--grid", "shape.mixer.num_heads=1,2", "--shape.mixer.num_heads", "4"], "'shape.mixer.num_heads'"),
        (["shape.mixer:attention:num_heads=2", "--shape.mixer.num_heads", "4"], "'attention:num_heads=2' sets"),
        (["shape.mixer:attention:num_heads=2", "--grid", "shape.mixer.num_heads=1,2"], "'attention:num_heads=2' sets"),
        (
            ["--grid", "shape.mixer=gru,attention:num_heads=2", "--shape.mixer.num_heads", "4"],
            "--shape.mixer.num_heads",
        ),
        (["--grid", "shape.mixer=gru,attention:num_heads=2", "shape.mixer.num_heads=1,4"], "--grid shape.mixer.num_h"),
        (["--preset", "wide", "--grid", "rate=1,2", "--rate", "3"], "'rate'"),
    ],
)
def test_an_option_that_is_said_twice_is_refused(cli: Cli, shelf: Path, words: list[str], path: str) -> None:
    code, out, err = cli("shelf", "--plugin", shelf, "--dry-run", *words)
    assert code == 2 and out == "" and path in err and "leave one of them out" in err and len(err.splitlines()) == 1


def test_an_axis_below_a_word_and_a_flag_below_an_axis_say_two_things(planned: Callable[..., Any]) -> None:
    runs = planned("shape.mixer:attention", "--grid", "shape.mixer.num_heads=1,2", "--shape.mixer.conv", "3")
    assert values(runs, "shape.mixer.num_heads", "shape.mixer.conv") == {(1, 3), (2, 3)}
    runs = planned("--grid", "shape.mixer=attention:conv=3,gru", "--shape.mixer.num_heads", "2")
    assert values(runs, MIXER, "shape.mixer.num_heads") == {("attention", 2), ("gru", None)}


def test_an_option_and_an_axis_of_it_are_refused_from_python_too(shelf: Path, tmp_path: Path) -> None:
    for options, grid in (({"rate": 1.0}, {"old_rate": [2.0]}), ({"seeds": (1,)}, {"seed": [2]})):
        with pytest.raises(UserError, match="an axis of the grid and an option too"):
            assay.run("shelf", plugins=[shelf], out=tmp_path, grid=grid, **options)


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
        ("--tiemout", "Did you mean '--timeout-per-run'"),
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
    assert code == 2 and f"no flag '{flag}'. Did you mean {meant}?" in err


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


def test_a_switch_drops_the_axis_of_its_option(planned: Callable[..., Any]) -> None:
    for words, left in (([], {(True,), (False,)}), (["--shape.no_bias"], {(False,)}), (["--shape.bias"], {(True,)})):
        assert values(planned("--preset", "biases", *words), "shape.bias") == left


@pytest.mark.parametrize("words", [["--shape.bias=maybe"], ["--shape.no-bias", "maybe"], ["--shape.bais"]])
def test_what_is_no_switch_is_refused(cli: Cli, shelf: Path, words: list[str]) -> None:
    code, out, err = cli("shelf", "--plugin", shelf, "--dry-run", *words)
    assert code == 2 and out == "" and len(err.splitlines()) == 1
    assert words[-1].rpartition("=")[2] in err and f"mean '{words[-1]}'" not in err


def test_a_presets_tied_head_is_told_how_to_be_untied(cli: Cli, tmp_path: Path) -> None:
    command = ["icl", "--preset", "quick", "task:regression", "--dry-run", "--device", "cpu", "--out", tmp_path]
    code, _, err = cli(*command)
    assert code == 2 and "--model.no_tied" in err
    assert cli(*command, "--model.no_tied")[0] == 0


def booleans(cls: Any) -> Iterator[str]:
    """The dotted paths of a dataclass's booleans, plug-ins left out."""
    for name, hint in get_type_hints(cls).items():
        if hint is bool:
            yield name
        elif is_dataclass(hint) and not issubclass(hint, Plugin):  # type: ignore[arg-type]
            yield from (f"{name}.{inner}" for inner in booleans(hint))


def settings_of_switches() -> list[tuple[str, str | None]]:
    """Every study with the presets that set its switches, one for each way to set them."""
    from assay.api import configure

    found: dict[tuple[Any, ...], tuple[str, str | None]] = {}
    for name in registries()["studies"].folder:
        cls = registries()["studies"][name]
        for preset in (None, *cls.presets) if issubclass(cls, Study) else ():
            study = configure(cls, preset, {})
            found.setdefault((name, *(attrgetter(path)(study) for path in booleans(cls))), (name, preset))
    return [*found.values()]


@pytest.mark.parametrize(("name", "preset"), settings_of_switches())
def test_a_switch_is_read_in_every_spelling_whatever_it_is_set_to(name: str, preset: str | None) -> None:
    """Switches of the study, of what it holds, and of the command."""
    from assay.api import Execution, configure
    from assay.command.flags import read
    from assay.command.study_command import Shell
    from assay.core.plan import assign

    parts = [configure(registries()["studies"][name], preset, {}), Shell(), Execution()]
    classes = [type(part) for part in parts]
    assert "dry_run" in booleans(Shell)
    for spelling, wanted in {"{}{}{}": True, "{}{}no_{}": False, "{}{}{} True": True, "{}{}{}=no": False}.items():
        paths = [path.rpartition(".") for cls in classes for path in booleans(cls)]
        line = read([word for path in paths for word in f"--{spelling.format(*path)}".split()], *classes)
        assert not line.unknown
        for part in parts:
            made = assign(part, line.values(type(part)))
            assert {attrgetter(path)(made) for path in booleans(type(part))} <= {wanted}


@pytest.mark.parametrize(
    ("for_cpu", "words", "named"),
    [
        (("wide",), (), True),
        (("wide",), ("--preset", "shapes"), True),
        (("shapes", "wide"), ("--preset", "wide"), False),
        ((), (), False),
        (("wide",), ("--quiet",), False),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_a_study_that_may_take_long_on_a_cpu_names_its_preset_for_a_first_look(
    cli: Cli, shelf: Path, tmp_path: Path, for_cpu: tuple[str, ...], words: tuple[str, ...], named: bool, dry: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Study, "for_cpu", for_cpu)
    command = ["shelf", "--plugin", shelf, "--executor", "serial", "--out", tmp_path, *words]
    code, out, err = cli(*command, *["--dry-run"] * dry)
    said = "--preset wide is a first look." in (out if dry else err)
    assert code == 0 and said is named, (out, err)
    if not dry:
        assert "first look" not in cli(*command)[2], "everything is stored"
