"""What a study command says of itself: --choices, --help, --dry-run."""

import argparse
import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from assay.command.verbs import VERBS
from assay.core.plugin import registries

Cli = Callable[..., tuple[int, str, str]]


def test_choices_lists_every_word_in_panels_80_columns_wide(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
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
    said = " ".join(out.split())
    assert code == 0 and "--preset NAME" in said and "Presets: " in said and "task:mqar is --task mqar" in said
    end = out.partition("options of the chosen plug-ins:")[2]
    assert "\ntask mqar:\n  Recall the values of keys" in end and "\n  --model.seq_mixer.num_heads INT\n" in end
    said = " ".join(end.split())
    assert "INT Keys of a sequence, each shown with its value and asked for once. (default: 8)" in said
    chosen = cli("icl", "-h", "task:boolean", "model.seq_mixer:gru")[1].partition("options of the chosen plug-ins:")[2]
    assert "\ntask boolean:\n" in chosen and "\nmodel.seq_mixer gru:\n" in chosen and "num_kv_pairs" not in chosen
    assert "\nmodel.state_mixer mlp:\n" in chosen


def test_options_of_chosen_plugins_say_what_a_word_changed_and_what_it_holds(cli: Cli) -> None:
    code, out, _ = cli("expressivity", "--models", "gru", "self_attn:heads=4", "pooled_mixer", "mean_linear", "--help")
    end = out.partition("options of the chosen plug-ins:")[2]
    heads = end.partition("--models.heads INT")[2].partition("\n\n")[0]
    assert code == 0 and end.count("\n  --models.width INT ") == 4
    assert " ".join(heads.split()).endswith("(here: 4; default: 8)")
    assert "\nmodels.mixer attention:\n" in end and "\n  --models.mixer.num_heads INT\n" in end
    none = cli("icl", "model.state_mixer:none", "--help")[1].partition("model.state_mixer none:\n")[2]
    assert "It has no options." in none


def test_help_has_the_options_of_a_plugin_from_a_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "deep_gru.py"
    path.write_text(DEEP_GRU)
    code, out, _ = cli("icl", "--plugin", path, "model.seq_mixer:deep_gru:gate=false", "--help")
    end = out.partition("\nmodel.seq_mixer deep_gru:\n")[2].partition("\nmodel.state_mixer")[0]
    assert code == 0 and end.startswith("  A recurrence of mine.\n\n  --model.seq_mixer.conv INT")
    said = " ".join(end.split())
    assert "--model.seq_mixer.depth INT Steps per token, 100 % of them. (default: 3)" in said
    assert "--model.seq_mixer.gate {true,false} (here: false; default: true)" in said


DEEP_GRU = '''
from dataclasses import dataclass
from assay.mixers import mixers
from assay.mixers.base import Mixer


@mixers.register("deep_gru")
@dataclass(frozen=True, kw_only=True)
class DeepGRU(Mixer):
    """A recurrence of mine."""

    depth: int = 3
    """Steps per token, 100 % of them."""
    gate: bool = True
'''


def test_options_of_chosen_plugins_are_laid_out_like_the_studys_own(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # which is not that of a pipe
    own, _, end = cli("sae", "data:dictionary", "--coders", "kmeans", "--help")[1].partition("options of the chosen")
    for part in (own, end):
        lines = part.splitlines()
        flags = [line for line in lines if line.startswith("  --")]
        texts = {len(line) - len(line.lstrip()) for line in lines if line.startswith("    ")}
        assert max(map(len, lines)) <= 80 and flags and texts == {26}
        assert {found.end() for line in flags if (found := re.match(r"  --.*?  +(?=\S)", line))} == {26}
    assert "--data.hierarchy {true,false}" in end and "--coders.code {hard,triangle}" in end


@pytest.mark.parametrize("folder", registries())
def test_every_option_of_every_plugin_has_a_text_that_says_more_than_its_name(folder: str) -> None:
    from assay.command.flags import options
    from assay.command.help import field_texts

    registry = registries()[folder]
    for cls in (registry[name] for name in registry.folder):
        texts = {"": field_texts(cls)}
        for option in options(cls):
            holder, _, name = option.path.rpartition(".")
            if option.is_part:  # its text is the docstring, printed above its options
                texts[option.path] = field_texts(option.hint)
                assert not option.hint.__doc__.startswith(f"{option.hint.__name__}("), f"{option.hint}: say what it is"
                continue
            words = set(re.findall(r"[a-z0-9]+", texts[holder].get(name, "").lower())) - {"a", "the", "of", "number"}
            assert words - {*name.lower().split("_")}, f"{folder}/{cls.name}: write below '{option.path}' what it is"


def test_help_lists_no_flag_below_several_plug_ins_of_one_option(cli: Cli) -> None:
    """Which would have to be an option of each of them."""
    pattern = "--model.seq_mixer.pattern."
    for word, listed in (("delta_net", True), ("base_conv+delta_net", False)):
        code, out, _ = cli("icl", f"model.seq_mixer:hybrid:pattern={word}", "--help")
        assert code == 0 and (f"{pattern}num_heads" in out) is listed, out


def test_help_has_every_flag_of_every_study_with_its_default(cli: Cli) -> None:
    from assay.command.flags import options

    for name in registries()["studies"].folder:
        code, out, _ = cli(*name.split("."), "--help")
        paths = [option.path for option in options(registries()["studies"][name]) if not option.is_part]
        for holder, dot, last in (path.rpartition(".") for path in paths):
            assert code == 0 and re.search(rf"\n  --{re.escape(holder + dot)}(no_)?{last}[ \n]", out), (name, last)
        assert len(re.findall(r"\(default:\s|\(required\)", out)) >= len(paths) + 3


def test_help_says_what_is_written_below_a_field(cli: Cli, toy: Any) -> None:
    out = " ".join(cli("toy", "--help")[1].split())
    assert "--xs [INT|A..B ...] (default: 1 2 3)" in out
    assert "--grouped Runs of one seed as one cohort. (default: false)" in out
    assert "--timeout-per-run FLOAT|none Seconds after which" in out
    out = " ".join(cli("perplexity", "--help")[1].split())
    assert "--no_context_sweep Sweep over context lengths where" in out and "(default: true)" not in out
    assert "(required)" in cli("modular", "similarity", "--help")[1]


def test_help_is_there_beside_a_wrong_value(cli: Cli) -> None:
    assert cli("icl", "--seeds", "x", "--nonsense", "--help")[:2] == cli("icl", "--help")[:2]


def test_choices_are_drawn_with_what_the_encoding_has(toy: Any) -> None:
    from assay.command.help import print_choices

    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with redirect_stdout(terminal):
        print_choices(registries()["studies"]["expressivity"]())
    terminal.flush()
    assert terminal.buffer.getvalue().startswith(b"+- models choices ---")  # type: ignore[attr-defined]


def test_dry_run_shows_a_presets_grid(cli: Cli, shelf: Path, tmp_path: Path) -> None:
    code, out, _ = cli("shelf", "--plugin", shelf, "--preset", "wide", "--dry-run", "--json", "--out", tmp_path)
    labels = [row["run"] for row in json.loads(out)["rows"]]
    assert code == 0 and "shelf gru rate=0.2 seed=1" in labels and len(labels) == 8


@pytest.mark.parametrize(
    "words", [[verb] for verb in VERBS] + [["card", "diff"], ["card", "submit"], ["card", "verify"], ["data", "pull"]]
)
def test_every_flag_and_word_of_a_verb_has_a_help_text(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    parsers: list[argparse.ArgumentParser] = []
    monkeypatch.setattr(argparse.ArgumentParser, "print_help", lambda parser, file=None: parsers.append(parser))
    assert cli(*words, "--help")[0] == 0
    (parser,) = parsers
    actions = [action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]
    assert not [action.dest for action in actions if not action.help]


@pytest.mark.parametrize(
    ("study", "said"),
    [("icl", "(default: one seed, the number 2)"), ("expressivity", "(default: 5 seeds, the numbers 0 1 2 3 4)")],
)
def test_the_default_of_seeds_cannot_be_read_as_how_many(cli: Cli, study: str, said: str) -> None:
    assert said in " ".join(cli(study, "--help")[1].split())


def test_choices_have_no_line_that_is_cut(cli: Cli) -> None:
    for study, path in (("icl", "model.seq_mixer"), ("expressivity", "models"), ("sae", "coders")):
        out = cli(study, "--choices")[1]
        assert "…" not in out and {len(line) for line in out.splitlines()} == {80}
        together = "".join(line.strip("│ ") for line in out.splitlines())
        folder = {"model.seq_mixer": "mixers", "models": "encoders", "coders": "sparse_coders"}[path]
        assert f"[{{{','.join(f'{path}:{name}' for name in registries()[folder].names())}}}]" in together
