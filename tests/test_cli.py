"""The command as a person meets it: right and wrong words, and what comes out."""

import itertools
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOY = Path(__file__).parent / "toy.py"
Cli = Callable[..., tuple[int, str, str]]

ENCODER = '''
from assay.studies.expressivity import register, Config, nn, F

@register("{name}")
class MyEnc(nn.Module):
    """A linear map of the last token."""
    def __init__(self, cfg: Config):
        super().__init__()
        self.net = nn.Linear(cfg.D_in, cfg.D_z)
    def forward(self, x):
        {body}
'''
QUICK = [
    "--seeds", "0", "1", "--batch_eval", "256", "--retr_steps", "20", "--retr_train_steps", "5", "--jac_points", "4",
]  # fmt: skip


@pytest.fixture
def my_encoder(tmp_path: Path) -> Path:
    path = tmp_path / "my_encoder.py"
    name = f"MyCoolEncoder{random.randrange(10**9)}"
    path.write_text(ENCODER.format(name=name, body="z = self.net(x)\n        return F.relu(z[:, -1])"))
    return path


def test_no_words_show_studies_and_verbs(cli: Cli) -> None:
    code, out, _ = cli()
    assert code == 0 and "expressivity" in out and "report" in out
    assert cli("--version")[1].startswith("assay 0.")


def test_python_runs_the_package_as_the_command() -> None:
    ran = subprocess.run([sys.executable, "-m", "assay", "shw"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and ran.stderr.startswith("assay: no command 'shw'. Did you mean 'show'?")


def test_the_page_has_its_rows_in_the_order_of_the_terminal(cli: Cli, tmp_path: Path) -> None:
    words = ["toy", "--plugin", TOY, "--xs", *"53142", "--seeds", "0", "--out", tmp_path, "--executor", "serial"]
    _, table, _ = cli(*words)
    shown = [line.split()[0] for line in table.splitlines()[2:]]
    assert cli("report", "--plugin", TOY, "--out", tmp_path)[0] == 0
    cells = re.findall(r"<tr>\s*<td[^>]*>([^<]*)</td>", (tmp_path / "report.html").read_text())
    assert shown == cells[:5] == list("53142")


def test_a_study_of_several_commands_lists_them_with_their_questions(cli: Cli) -> None:
    code, out, _ = cli("modular", "--help")
    assert code == 0
    for verb, question in (
        ("sweep", "when its bottleneck shrinks?"),
        ("similarity", "How alike are models"),
        ("frequencies", "Which frequencies"),
    ):
        assert any(line.startswith(f"assay modular {verb} ") and question in line for line in out.splitlines())
    assert cli("modular")[:2] == (0, out) and "modular.sweep" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["modular", "swep"], "Did you mean 'modular sweep'"),
        (["moduler"], "Did you mean 'modular"),
        (["expresivity"], "Did you mean 'expressivity'"),
        (["list", "encoder5"], "Did you mean 'encoders'"),
        (["expressivity", "--models", "SelfAtn"], "Did you mean 'SelfAttn'"),
        (["expressivity", "--models", "self_attn:haeds=2"], "Did you mean 'heads'"),
        (["expressivity", "--models", "self_attn:heads=two"], "expected int, got 'two'"),
        (["expressivity", "--models", "gru:width=0"], "width=0 is too small"),
        (["expressivity", "--seeds", "x"], "--seeds: expected int, got 'x'."),
        (["expressivity", "--seeds", "0", "5..2"], "the range '5..2' is empty"),
        (["expressivity", "--workers", "many"], "--workers: expected int, got 'many'."),
        (["expressivity", "--workers=many"], "--workers: expected int, got 'many'."),
        (["expressivity", "--noise", "loud"], "--noise: expected float, got 'loud'."),
        (["expressivity", "--retry", "maybe"], "--retry: expected one of failed, diverged, none, got 'maybe'."),
        (["expressivity", "--L"], "--L needs a value."),
        (["expressivity", "--executor", "slurm"], "Known: local, ray, serial"),
        (["expressivity", "--trian_steps", "3"], "Did you mean '--train_steps'"),
        (["icl", "--train.max-steps", "3.5"], "--train.max_steps: expected int, got '3.5'."),
        (["modular", "similarity"], "assay modular similarity needs --sweep"),
        (["expressivity", "--grid"], "--grid names no axis"),
        (["expressivity", "--L", "16"], "L=16"),
        (["expressivity", "--F_feat", "7"], "F_feat=7"),
        (["expressivity", "--grid", "L=16,32"], "L=16"),
        (["expressivity", "--lr", "nan"], "--lr: expected a finite number, got 'nan'."),
        (["expressivity", "--noise", "nan"], "noise"),
        (["expressivity", "--batch_eval", "64", "--batch_train", "1024"], "batch_train=1024"),
        (["expressivity", "--cpu-only", "--device", "cuda"], "exclude each other"),
        (["expressivity", "--self-test", "--json"], "--json"),
        (["expressivity", "--grid", "nose=0.1"], "Did you mean 'noise'"),
        (["expressivity", "--grid", "noise"], "key=value1,value2"),
        (["expressivity", "--grid", "noise=loud"], "expected float, got 'loud'"),
        (["expressivity", "--models", "gru", "self_attn", "--grid", "models.heads=2,4"], "encoder 'gru' has no option"),
        (["expressivity", "--preset", "dmo"], "Did you mean 'demo'"),
        (["expressivity", "--device", "cuda:99"], "--device cpu"),
        (["expressivity", "--device", "tpu"], "auto, cpu, cuda"),
        (["expressivity", "--budget", "many"], "25k"),
        (["expressivity", "--workers", "-2"], "--workers -2"),
        (["expressivity", "--timeout-per-run", "0"], "above 0"),
        (["expressivity", "--budget", "3"], "3"),
        (["expressivity", "--ray-address", "auto"], "--executor ray"),
        (["expressivity", "--plugin", "absent.py"], "cannot read the plug-in file 'absent.py'"),
        (["expressivity", "--tester", "None"], "no tester named 'None'"),
        (["show", "abc", "--out", "nowhere"], "no results folder 'nowhere'"),
        (["rm"], "no results folder"),
        (["show", "--oot", "x"], "no flag '--oot'. Did you mean '--out'? `assay show --help`"),
        (["check", "encoders"], "required: names. `assay check --help`"),
        (["rm", "--status", "lost"], "invalid choice: 'lost'"),
        (["data", "list", "--jsn"], "no flag '--jsn'. Did you mean '--json'? `assay data list --help`"),
        (["report", "all"], "'all': not known. `assay report --help`"),
        (["data", "pul"], "invalid choice: 'pul'"),
        (["check", "encoders", "gruu"], "Did you mean 'GRU'"),
        (["version"], "Did you mean '--version'?"),  # 2.6, and the next two
        (["--verison"], "Did you mean '--version'?"),
        (["--hlep"], "Did you mean '--help'?"),
    ],
)
def test_a_wrong_word_is_one_message_with_the_remedy_and_exit_code_2(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*words)
    assert code == 2 and out == "" and said in err
    assert "Traceback" not in err and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_a_misspelt_verb_of_a_study_names_the_nearest(cli: Cli) -> None:
    code, _, err = cli("sae", "theorm")
    assert code == 2 and "Did you mean 'theorem'?" in err


def test_options_of_a_chosen_plugin_are_flags_too(cli: Cli, tmp_path: Path) -> None:
    words = ["expressivity", "--dry-run", "--json", "--seeds", "0", "--out", tmp_path]
    by_word = cli(*words, "--models", "self_attn:heads=4:width=64")[1]
    assert by_word == cli(*words, "--models.heads", "4", "--models", "self_attn", "--models.width=64")[1]
    assert by_word == cli("expressivity", "models:self_attn", "--models.heads=4", *words[1:], "--models.width", "64")[1]
    code, _, err = cli(*words, "--models", "gru", "--models.heads", "4")
    assert code == 2 and "encoder 'gru' has no option 'heads'" in err


def test_help_of_a_study_lists_the_specs_flags(cli: Cli) -> None:
    code, out, _ = cli("expressivity", "--help")
    flags = (
        "--train_steps --fast --cpu-only --L --ar_coeff --noise --retr_hid --self-test --models --seeds --grid --json"
    )
    assert code == 0 and all(flag in out for flag in flags.split())


def test_runs_of_a_grid_are_told_apart_by_what_it_varies(cli: Cli, tmp_path: Path) -> None:
    words = [
        "expressivity",
        "--models",
        "gru",
        "--seeds",
        "0",
        "--grid",
        "noise=0.1,0.2",
        "--dry-run",
        "--out",
        tmp_path,
    ]
    out = cli(*words)[1]
    assert "expressivity gru noise=0.1 seed=0" in out and "expressivity gru noise=0.2 seed=0" in out


def test_a_plugin_flag_takes_one_file_wherever_it_stands(cli: Cli, my_encoder: Path, tmp_path: Path) -> None:
    name = my_encoder.read_text().partition('register("')[2].partition('"')[0]
    assert cli("check", "--plugin", my_encoder, "encoder", name)[0] == 0
    (tmp_path / ".store").mkdir()
    assert cli("report", f"--plugin={my_encoder}", "--out", tmp_path)[0] == 0
    assert cli("--plugin", my_encoder, "list", "encoders")[1].count(name) == 1
    assert cli("list", "--plugin")[0] == 2


@pytest.mark.parametrize("name", ["SelfAttn", "self_attn", "Oracle", "esc\x1b[31m", "a b", "a:b"])
def test_a_name_that_is_taken_or_unreadable_is_refused(cli: Cli, tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(ENCODER.format(name=name.encode("unicode_escape").decode(), body="return self.net(x)[:, -1]"))
    code, out, err = cli("expressivity", "--plugin", path, "--dry-run", "--out", tmp_path)
    assert code == 2 and out == "" and "name" in err and "\x1b" not in err


def test_both_spellings_of_a_flag_work(cli: Cli, tmp_path: Path) -> None:
    for spelling in ("--cpu-only", "--cpu_only"):
        code, out, _ = cli("expressivity", spelling, "--dry-run", "--train_steps", "3", "--out", tmp_path)
        assert code == 0 and "45 planned" in out


def test_arguments_come_in_any_order(cli_json: Callable[..., Any], tmp_path: Path) -> None:
    parts = [
        ["--plugin", TOY], ["--xs", "1", "2"], ["--grid", "seeds=0..1", "grouped=true,false"],
        ["--executor", "serial"], ["--out", tmp_path], ["--quiet"],
    ]  # fmt: skip
    orders = list(itertools.permutations(parts))
    random.Random(0).shuffle(orders)
    plans = [cli_json("toy", *itertools.chain(*order), "--dry-run") for order in orders[:12]]
    assert len(plans[0]["rows"]) == 8 and all(plan == plans[0] for plan in plans)


def test_json_is_one_document_and_nothing_else(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("toy", "--plugin", TOY, "--executor", "serial", "--out", tmp_path, "--json")
    document = json.loads(out)
    assert (
        code == 0 and set(document) == {"study", "findings", "rows", "files", "tables"} and document["study"] == "toy"
    )
    assert {row["square"] for row in document["rows"]} == {1.0, 1.1, 4.0, 4.1, 9.0, 9.1}
    assert document["files"] and all(Path(path).is_file() for path in document["files"])
    assert "6 planned, 0 stored, 6 to run" in err


def test_the_same_plan_again_computes_nothing_and_says_so(cli: Cli, tmp_path: Path) -> None:
    words = ["toy", "--plugin", TOY, "--executor", "serial", "--out", tmp_path]
    first, second = cli(*words), cli(*words)
    assert first[1] == second[1] and "6 planned, 6 stored, nothing to run" in second[2]
    assert "6 to run" in cli(*words, "--force")[2]
    assert "12 planned, 6 stored, 6 to run in 2 cohorts (about " in cli(*words, "--grid", "grouped=true,false")[2]


def test_dry_run_computes_nothing_and_estimates_from_stored_costs(cli: Cli, tmp_path: Path) -> None:
    words = ["toy", "--plugin", TOY, "--executor", "serial", "--out", tmp_path]
    code, out, _ = cli(*words, "--dry-run")
    assert (
        code == 0
        and out.count("to run  toy") == 6
        and "no estimate" in out
        and not tmp_path.joinpath(".store").exists()
    )
    cli(*words, "--xs", "1")
    assert "4 to run (about 0 s)" in cli(*words, "--dry-run")[1]


def test_a_checkpoint_that_an_interrupted_command_left_is_announced(cli: Cli, tmp_path: Path) -> None:
    words = ["toy", "--plugin", TOY, "--executor", "serial", "--out", tmp_path, "--dry-run"]
    planned = [line.split()[0] for line in cli(*words)[1].splitlines()[:2]]
    for said, run_id in zip(("1 checkpoint to resume from", "2 checkpoints to resume from"), planned, strict=True):
        folder = tmp_path / ".store" / "toy" / run_id
        folder.mkdir(parents=True)
        (folder / "checkpoint").touch()
        assert f"6 to run (no estimate: nothing like it is stored, {said})" in cli(*words)[1]
    assert "checkpoint" not in cli(*words, "--force")[1], "which starts anew"


def test_a_failed_run_is_named_with_its_reason_and_the_exit_code_is_1(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x=2").write_text("raise always")
    words = ["toy", "--plugin", TOY, "--executor", "serial", "--out", tmp_path, "--trap", tmp_path]
    code, out, err = cli(*words)
    assert code == 1 and "9.10" in out and "ValueError: trapped at 2" in err
    failed = err.partition("assay show ")[2].split()[0]
    assert "Traceback" in json.loads(cli("show", failed, "--json", "--out", tmp_path)[1])["error"]
    assert cli("rm", "--status", "failed", "--out", tmp_path)[1].count("removed") == 2
    assert "4 stored, 2 to run" in cli(*words, "--dry-run")[1]


def test_rm_wants_to_know_which_runs(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / ".store").mkdir()
    code, _, err = cli("rm", "--out", tmp_path)
    assert code == 2 and "say which runs" in err


def test_show_and_rm_by_id_and_study(cli: Cli, tmp_path: Path) -> None:
    cli("toy", "--plugin", TOY, "--preset", "tiny", "--executor", "serial", "--out", tmp_path)
    lines = cli("show", "--out", tmp_path)[1].splitlines()
    assert len(lines) == 2 and all(" done " in line for line in lines)
    when = [line.split()[2] for line in lines]
    assert when == sorted(when), "the latest last"
    first = lines[0].split()[0]
    assert "would remove" in cli("rm", first[:8], "--dry-run", "--out", tmp_path)[1]
    assert cli("rm", first, "--out", tmp_path)[0] == 0 and len(cli("show", "--out", tmp_path)[1].splitlines()) == 1
    assert cli("rm", "--study", "toy", "--out", tmp_path)[0] == 0 and cli("show", "--out", tmp_path)[1] == ""


def test_show_tells_runs_apart_and_says_what_each_number_is(cli: Cli, tmp_path: Path) -> None:
    cli("toy", "--plugin", TOY, "--xs", "2", "3", "--seeds", "0", "--executor", "serial", "--out", tmp_path)
    lines = cli("show", "--out", tmp_path)[1].splitlines()
    assert sorted(line.split("  ")[-1] for line in lines) == ["toy x=2 seed=0", "toy x=3 seed=0"]
    three = next(line.split()[0] for line in lines if "x=3" in line)
    text = cli("show", three[:6], "--out", tmp_path)[1]
    assert text.startswith(f"toy x=3 seed=0\nrun {three}: done")
    asked, measured = text.index("options (decide"), text.index("metrics (")
    assert asked < re.search(r"\n  x +3\n", text).start() < measured < re.search(r"\n  square +9\n", text).start()  # type: ignore[union-attr]
    assert "note.txt" in text
    whole = json.loads(cli("show", three, "--json", "--out", tmp_path)[1])
    assert whole in json.loads(cli("show", "--json", "--out", tmp_path)[1]) and whole["metrics"] == {"square": 9.0}


def test_a_failed_run_is_shown_with_its_traceback(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x=1").write_text("raise")
    cli(
        "toy",
        "--plugin",
        TOY,
        "--xs",
        "1",
        "--seeds",
        "0",
        "--trap",
        tmp_path,
        "--executor",
        "serial",
        "--out",
        tmp_path,
    )
    failed = cli("show", "--out", tmp_path)[1].split()[0]
    text = cli("show", failed, "--out", tmp_path)[1]
    assert ": failed, " in text and text.rstrip().endswith("ValueError: trapped at 1") and "measured" not in text


def test_list_for_machines_has_aliases_and_summaries(cli: Cli) -> None:
    rows = json.loads(cli("list", "encoders", "--json")[1])
    attention = next(row for row in rows if row["name"] == "self_attn")
    assert attention["aliases"] == ["SelfAttn"] and attention["summary"]


@pytest.mark.usefixtures("undrawn")
def test_the_specs_example_runs_from_a_file_of_ones_own(
    cli_json: Callable[..., Any], my_encoder: Path, tmp_path: Path
) -> None:
    words = ["expressivity", "--plugin", my_encoder, *QUICK, "--executor", "serial", "--models"]
    name = my_encoder.read_text().partition('register("')[2].partition('"')[0]
    document = cli_json(*words, name, "StaticMLP", "--out", tmp_path)
    assert [row["Model"] for row in document["rows"]] == [name, "StaticMLP", "Oracle", "Noise"]
    score = document["rows"][0]["R2"]
    assert set(score) == {"mean", "low", "high", "n"} and score["n"] == 2 and 0 < score["mean"] < 1


def test_without_models_ones_own_encoder_appears_beside_all_others(cli: Cli, my_encoder: Path, tmp_path: Path) -> None:
    out = cli("expressivity", "--plugin", my_encoder, "--dry-run", "--out", tmp_path)[1]
    assert "MyCoolEncoder" in out and "self_attn" in out and "static_mlp" in out


def test_check_passes_a_good_file_and_fails_a_broken_one(cli: Cli, my_encoder: Path, tmp_path: Path) -> None:
    name = my_encoder.read_text().partition('register("')[2].partition('"')[0]
    code, out, _ = cli("check", "encoders", name, "--plugin", my_encoder)
    assert code == 0 and "pass" in out and "FAIL" not in out
    broken = tmp_path / "broken.py"
    body = "z = self.net(x)[:, -1]\n        return F.relu(z - z.mean(0))  # sequences mix"
    broken.write_text(ENCODER.format(name=f"Broken{name}", body=body))
    code, out, _ = cli("check", "encoders", f"Broken{name}", "--plugin", broken)
    assert code == 1 and "FAIL" in out


def test_self_test_checks_the_chosen_encoders_and_the_generators(cli: Cli) -> None:
    code, out, _ = cli("expressivity", "--self-test", "--models", "StaticMLP")
    assert code == 0 and "encoders: StaticMLP" in out and "tasks: hybrid" in out and "FAIL" not in out


@pytest.mark.parametrize("words", [["list"], ["icl", "--choices"]])
def test_a_reader_that_leaves_early_is_not_an_error(words: list[str]) -> None:
    command = [sys.executable, "-m", "assay", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ran:
        assert ran.stdout and ran.stderr
        ran.stdout.close()
        assert ran.stderr.read() == b""
    assert ran.returncode == 0


def test_plain_lines_when_piped(cli: Cli, tmp_path: Path) -> None:
    _, _, err = cli("toy", "--plugin", TOY, "--executor", "serial", "--out", tmp_path)
    assert err.count("done toy") == 6 and "\x1b" not in err and "[6/6" in err
    assert (
        cli("toy", "--plugin", TOY, "--executor", "serial", "--out", tmp_path, "--force", "--quiet")[2].count("done")
        == 0
    )


@pytest.mark.parametrize(("columns", "width"), [(None, 118), ("60", 60), ("0", 118)])
def test_a_piped_table_is_as_wide_as_the_documents_or_as_asked_for(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int
) -> None:
    plugin = tmp_path / "wide.py"
    row = '{f"a rather long name {n}": 1.0 for n in range(20)}'
    squares = '{"x": r.run.options["x"], "square": r.metrics["square"]}'
    plugin.write_text(TOY.read_text().replace('register("toy")', 'register("wide")').replace(squares, row))
    monkeypatch.setenv("COLUMNS", columns) if columns else monkeypatch.delenv("COLUMNS")
    code, out, _ = cli("wide", "--plugin", plugin, "--xs", "1", "--executor", "serial", "--out", tmp_path)
    assert code == 0 and all(f"a rather long name {n}" in out for n in range(20))
    assert width - 24 < max(map(len, out.splitlines())) <= width
