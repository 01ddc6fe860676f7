"""`assay card` on a file outside the tree: one command, one screen; and what it refuses."""

import hashlib
import json
import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from card_toys import TINY, TOY, TWIN

from assay.card import cost, exchange, protocol
from assay.command import card_request
from assay.core import shipped
from assay.core.run import Numerics

Cli = Callable[..., tuple[int, str, str]]
MADE: dict[str, Path] = {}
"""The results of a card of the twin beside its model, trained once for all tests of this file."""
LEAKING = """
import torch
from dataclasses import dataclass
from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule

class Mean(MixerModule):
    def forward(self, x):
        return x + x.mean(1, keepdim=True)

    def init_state(self, batch):
        return torch.zeros(batch, 1)

    def step(self, x, state):
        return 2 * x, state

@mixers.register("leaking")
@dataclass(frozen=True, kw_only=True)
class Leaking(Mixer):
    def core(self, d_model, max_len):
        return Mean()

    def core_state(self, d_model, length):
        return 1
"""

TABLE = """
import torch
from dataclasses import dataclass
from assay.mixers import mixers
from assay.mixers.base import Mixer, MixerModule

class Weighted(MixerModule):
    def __init__(self, d_model, max_len):
        super().__init__()
        self.table = torch.nn.Parameter(torch.ones(max_len, d_model))

    def forward(self, x):
        return (x * self.table[: x.shape[1]]).cumsum(1)

    def init_state(self, batch):
        return torch.zeros(batch, self.table.shape[1]), torch.zeros(batch, 1)

    def step(self, x, state):
        y = state[0] + x * self.table[int(state[1][0])]
        return y, (y, state[1] + 1)

@mixers.register("table")
@dataclass(frozen=True, kw_only=True)
class Table(Mixer):
    ordered = True  # by its table, which starts as ones

    def core(self, d_model, max_len):
        return Weighted(d_model, max_len)

    def core_state(self, d_model, length):
        return d_model + 1
"""


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(protocol, "TIERS", {"smoke": TOY})
    monkeypatch.setattr(cost, "LENGTH", 16)
    monkeypatch.setattr(cost, "REPEATS", 1)
    monkeypatch.chdir(tmp_path)


BESIDE_ITS_MODEL = ("card", "twin.py", "--vs", "gru", "--executor", "serial")


@pytest.fixture
def trained(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> str:
    """The file of a twin, and the results of its card; what the command printed."""
    (tmp_path / "twin.py").write_text(TWIN)
    if "card" not in MADE:
        code, out, err = cli(*BESIDE_ITS_MODEL)
        assert code == 0, err
        made = tmp_path_factory.mktemp("made")
        shutil.copytree("results", made / "results")
        (made / "printed").write_text(out)
        (made / "said").write_text(err)
        MADE["card"] = made
    else:
        shutil.copytree(MADE["card"] / "results", "results")
    return (MADE["card"] / "printed").read_text()


def test_a_twin_of_a_mixer_is_level_with_it_and_a_second_command_computes_nothing(
    trained: str, tmp_path: Path, cli: Cli
) -> None:
    out = trained
    assert "card of twin" in out and "trained on this machine" in out and "bytes of state" in out
    assert "†" not in out, "nothing of it ships"
    page = (tmp_path / "results/card/twin.vs.html").read_text()
    drawn = set(re.findall(r'data-name="(\w+)"', page))
    of_recall = {"recall", "recall_by_state", "recall_while_training", "recall_by_length", "recall_by_rate"}
    assert drawn == {"profile", "speed_trained", "speed_decoded", "speed_by_length", "kept_by_length"} | of_recall
    assert "Card of twin" in page and "class Twin(GRU)" in page and "Provenance" in page and len(page) < 2_000_000
    first, _, rest = page.partition("A diamond is twin")
    assert "not told apart from gru" in rest and "not told apart from gru" not in first, "one screen says it in short"
    assert rest.count("Certificate: recipe: ") == 1
    assert "short convolution (conv=0): twin; most of the field has one, in front or inside" in page
    assert "Twin: " not in page, "a sentence does not change a name"
    svg = ElementTree.fromstring((tmp_path / "results/card/twin.vs.svg").read_text())
    told = "".join(svg.itertext())
    assert "twin: recall 1-2 of 2" in told and told.startswith("assay card, smoke, protocol "), told
    again, shown, told = cli(*BESIDE_ITS_MODEL, "--json")
    assert again == 0 and "to run" not in told
    card = json.loads(shown)[0]
    assert json.loads((tmp_path / "results/card/twin.vs.json").read_text())[0]["questions"] == card["questions"]
    found = card["questions"]["recall"]
    assert found["differences"]["gru"]["standing"] == "level" and found["differences"]["gru"]["interval"]["mean"] == 0
    assert [part.partition(":")[0] for part in found["certificate"]] == ["recipe", "doubled training", "seeds"]
    assert found["scores"].keys() == {"0", "1"} and card["protocol"] == protocol.VERSION


def test_promises_are_tried_with_the_options_that_are_asked_for(tmp_path: Path, cli: Cli) -> None:
    """A file's mixer that keeps its promises by default, and looks ahead with an option."""
    optional = LEAKING.replace("return x + x.mean(1, keepdim=True)", "return 2 * x").replace("leaking", "optional")
    optional += """
    ahead: bool = False

    def build(self, d_model, max_len):
        made = super().build(d_model, max_len)
        made.forward = (lambda x: x + x.mean(1, keepdim=True)) if self.ahead else made.forward
        return made
"""
    (tmp_path / "optional.py").write_text(optional)
    code, out, err = cli("card", "optional.py", "optional:ahead=True", "--executor", "serial")
    assert code == 2 and not out and "optional:ahead=true breaks a promise" in err and "tokens after t" in err, err
    assert "`assay check optional.py optional:ahead=true` tries every promise" in err


@pytest.mark.parametrize(
    "ahead",
    ["x.mean(1, keepdim=True)", "torch.nn.functional.pad(x[:, 40:], (0, 0, 40, 0)).mean(1, keepdim=True)",
     "torch.cat([x[:, 64:], x[:, :64] * 0], dim=1)"],
    ids=["everywhere", "from token 40 on", "in chunks of 64"],
)  # fmt: skip
def test_a_mixer_that_looks_ahead_is_refused_by_name_of_the_promise(ahead: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "leaking.py").write_text(LEAKING.replace("x.mean(1, keepdim=True)", ahead))
    code, out, err = cli("card", "leaking.py", "--executor", "serial")
    assert code == 2 and not out and "breaks a promise" in err and "does not read the future" in err, err
    code, _, err = cli("card", "leaking.py", "--questions", "recal", "--executor", "serial")
    assert code == 2 and "no question 'recal'" in err, "what is told without a try is told first"
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["delta_nte"], "Did you mean 'delta_net'"),
        (["none.py"], "none.py"),
        (["gru", "--vs", "nobody"], "no mixer named 'nobody'"),
        (["gru:width=-1"], "width"),
        (["gru", "--tier", "huge"], "huge"),
        ([], "FILE|MIXER"),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], said: str, cli: Cli) -> None:
    code, out, err = cli("card", *words)
    assert code == 2 and not out and said in err, err


CUDA = Numerics(device="cuda", dtype="bfloat16 autocast", backend="triton")


@pytest.fixture
def packed(trained: str, tmp_path: Path, cli: Cli) -> Path:
    """The twin's submission. Since it is a GRU, its records are a GRU's in every digit."""
    if "packed" not in MADE:
        code, _, err = cli("card", "submit", "twin.py", "packed", "--executor", "serial", "--vs", "gru")
        assert code == 0, err
        MADE["packed"] = MADE["card"] / "packed"
        shutil.copytree("packed", MADE["packed"])
    shutil.copytree(MADE["packed"], "packed", dirs_exist_ok=True)
    return tmp_path / "packed"


def resubmitted(
    packed: Path,
    text: str = TWIN,
    change: Callable[[dict[str, Any]], object] = lambda metrics: None,
    numerics: Numerics = Numerics(),  # noqa: B008
    **card: Any,
) -> Path:
    """The folder of somebody who wrote another file, changed the metrics of its records, and says so on the card."""
    folder, records = packed.with_name("again"), []
    for record in exchange.packed_records(packed).values():
        run, metrics = record.run, json.loads(json.dumps(record.metrics))
        if "mixer/twin" in run.versions:
            versions = {**run.versions, "mixer/twin": hashlib.sha256(text.encode()).hexdigest()}
            run = replace(run, versions=versions)
            for point in metrics["curve"]:
                point["loss"] *= 1.001  # as another training would
            change(metrics)
        run = replace(run, numerics=numerics)
        records.append(replace(record, run=run, metrics=metrics))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shipped.write(folder, "records", records)
    (folder / "mixer.py").write_text(text)
    (folder / "card.json").write_text(json.dumps(json.loads((packed / "card.json").read_text()) | card))
    return folder


def test_a_card_travels_and_its_reader_runs_none_of_its_code(
    packed: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3.1 and 3.2: what was not computed again is never called verified, and its exit code is not 0."""
    code, _, err = cli("card", "submit", "twin.py:conv=4", "packed", "--executor", "serial", "--vs", "gru")
    assert code == 2 and "submit a file as it is" in err
    assert sorted(path.name for path in packed.iterdir()) == ["card.json", "mixer.py", "records.jsonl.xz"]
    folder = resubmitted(packed, TWIN + "open('ran', 'w')\n")
    code, out, err = cli("card", "verify", folder)
    assert (code, out) == (3, "consistent, not recomputed\n") and "--run-code" in err, err
    assert not Path("ran").exists()
    told = json.loads((folder / "card.json").read_text())
    told["questions"]["recall"]["scores"]["0"] = 0.99
    (folder / "card.json").write_text(json.dumps(told))
    code, out, err = cli("card", "verify", folder)
    assert code == 2 and not out and "does not follow from its records" in err
    changed = replace(TOY, questions=(replace(TOY.questions[0], steps=90),))
    monkeypatch.setattr(protocol, "TIERS", {"smoke": changed})
    code, out, err = cli("card", "verify", folder)
    assert code == 2 and not out and "another file, protocol or device" in err


def test_3_1_what_was_forged_is_found_without_running_anything(packed: Path, cli: Cli) -> None:
    def refused(folder: Path, said: str) -> None:
        code, out, err = cli("card", "verify", folder)
        assert code == 2 and not out and said in err, (code, out, err)

    refused(packed, "has the losses of another mixer")
    refused(resubmitted(packed, numerics=CUDA), "another file, protocol or device")
    refused(resubmitted(packed, field={"recall": []}), "field may not be empty")
    refused(resubmitted(packed, field={}), "field may not be empty")
    refused(resubmitted(packed, mixer="gru"), "comes with assay")
    refused(resubmitted(packed, seeds=[0]), "seeds")
    folder = resubmitted(packed)
    (folder / "mixer.py").write_text(TWIN + "# other\n")
    refused(folder, "another file, protocol or device")
    refused(resubmitted(packed, shipped={"recall": ["gru"]}, protocol=4), "protocol 4")


def test_3_2_a_file_that_says_it_is_verified_and_exits_with_0_is_not(packed: Path, cli: Cli) -> None:
    liar = "import os\nprint('verified \\x1b[2J')\nos.write(1, b'verified\\n')\nos._exit(0)\n"
    code, out, err = cli("card", "verify", resubmitted(packed, liar), "--run-code")
    assert code == 2 and not out and "was not computed again" in err and "runs now, with your rights" in err, err
    assert "\x1b" not in err


def test_3_1_a_card_of_a_gpu_is_not_verified_where_there_is_none(
    packed: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "TIERS", {"smoke": replace(TOY, device="cuda", backend="triton")})
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for words in ((), ("--run-code",)):
        code, out, err = cli("card", "verify", resubmitted(packed, numerics=CUDA), *words)
        assert (code, out) == (3, "consistent, not recomputed\n") and "nothing was computed again" in err, err
    code, out, err = cli("card", "verify", resubmitted(packed))
    assert code == 2 and not out and "another file, protocol or device" in err, "the tier's numerics, no others"
    code, _, err = cli("card", "submit", "twin.py", "other", "--vs", "gru", "--device", "cpu", "--executor", "serial")
    assert code == 2 and "cuda" in err and not Path("other").exists()


@pytest.mark.slow
def test_3_2_verified_is_said_of_what_was_computed_again_in_a_process_of_its_own(packed: Path, cli: Cli) -> None:
    code, out, err = cli("card", "verify", resubmitted(packed), "--run-code")
    assert (code, out) == (0, "verified\n") and "computed again: recall" in err, err
    broken = LEAKING.replace("leaking", "twin")
    code, out, err = cli("card", "verify", resubmitted(packed, broken), "--run-code")
    assert code == 2 and not out and "breaks a promise" in err, err


def test_3_4_a_submission_with_anything_anywhere_is_refused_in_one_line(packed: Path, cli: Cli) -> None:
    folder = resubmitted(packed)
    card = json.loads((folder / "card.json").read_text())
    own = {key: card[key] for key in ("mixer", "protocol", "tier", "seeds", "field", "shipped", "anchors")}
    odd = (None, -1, "A" * 100_000, [1], {"a": 1}, [[[]]])

    def tried(what: str) -> None:
        code, out, err = cli("card", "verify", folder)
        assert code in (2, 3) and (code == 3 or (not out and err.splitlines()[-1].startswith("assay: "))), (what, err)

    for key in own:
        for value in odd:
            (folder / "card.json").write_text(json.dumps({**card, key: value}))
            tried(f"{key} {value!r:.20}")
        (folder / "card.json").write_text(json.dumps({name: told for name, told in card.items() if name != key}))
        tried(f"{key} missing")
    for key in ("curve", "by_size"):
        for value in (None, "x", [], [1]):
            tried_with = resubmitted(packed, change=lambda metrics, key=key, value=value: metrics.update({key: value}))
            assert tried_with == folder
            tried(f"{key} {value!r:.20}")
    (folder / "records.jsonl.xz").write_bytes(b"\xfd7zXZ and no more")
    tried("records cut short")
    for name in ("records.jsonl.xz", "mixer.py", "card.json"):
        (folder / name).unlink()
        tried(f"no {name}")
        os.mkfifo(folder / name)
        tried(f"{name} a pipe")


def other_forward(name: str, body: str) -> str:
    """The twin under another name, with another way through its layer; `inner` is its own."""
    changed = f"""
    def build(self, d_model, max_len):
        made = super().build(d_model, max_len)
        inner = made.forward

        def forward(x):
            {body}

        made.forward = forward
        return made
"""
    return TWIN.replace("twin", name) + changed


def test_a_question_that_fails_is_a_line_and_the_others_are_answered(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixer that keeps every promise and fails at 256 tokens."""
    short = other_forward("short", 'assert x.shape[1] != 256, "too long for it"; return inner(x)')
    (tmp_path / "short.py").write_text(short)
    parity = "state_tracking:group=parity:length=24"
    free = {**TINY, "positions": "none"}
    longer = replace(TOY.questions[0], name="longer", task=parity, metric=("by_length", "64"), model=free)
    monkeypatch.setattr(protocol, "TIERS", {"smoke": replace(TOY, questions=(longer, *TOY.questions))})
    code, out, err = cli("card", "short.py", "--vs", "short", "--executor", "serial")
    assert code == 1, err
    assert "longer: its runs failed, AssertionError" in out and "recall " in out, out
    assert re.search(r"^longer +failed ", out, re.MULTILINE), "no score, and no interval"
    run = re.search(r"assay show (\w+) --out", " ".join(out.split()))
    assert run is not None and "too long for it" in cli("show", run[1], "--out", "results/card")[1]
    assert "Cards keep theirs apart: --out results/card." in cli("show")[2]
    monkeypatch.setattr(protocol, "TIERS", {"smoke": replace(TOY, questions=(longer,))})
    code, out, err = cli("card", "short.py", "--vs", "short", "--executor", "serial")
    assert code == 2 and not out and "every run of short failed, AssertionError: too long for it: `assay" in err, err
    both = short.replace("short", "brief") + TWIN.replace("twin", "fine").replace("Twin", "Fine")
    (tmp_path / "both.py").write_text(both)
    code, out, err = cli("card", "both.py", "--vs", "gru", "--executor", "serial")
    assert code == 1 and "no card: every run of brief failed, AssertionError" in err and "card of fine " in out, err
    assert "card of brief" not in out
    code, out, err = cli("card", "gru", "--plugin", "both.py", "--vs", "brief", "--executor", "serial")
    assert code == 0 and "card of gru " in out, "one of the field that fails is not timed, and no row"


@pytest.mark.parametrize("others", [["gru"], ["lost"]], ids=["beside another", "alone"])
def test_a_mixer_that_diverges_at_every_rate_has_no_score(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    """It keeps every promise, and gives no numbers for a batch of training."""
    lost = other_forward("lost", 'return inner(x) * (float("nan") if x.shape[:2] == (16, 8) else 1.0)')
    (tmp_path / "lost.py").write_text(lost)
    monkeypatch.setattr(protocol, "TIERS", {"smoke": TOY})
    code, out, err = cli("card", "lost.py", "--vs", *others, "--executor", "serial")
    assert code == 0, err
    assert re.search(r"^recall +diverged ", out, re.MULTILINE) and "In short: nothing of it can be compared" in out, out
    assert "recall: no run gave a number, at rates of 1e-07 to 30: they diverged" in out
    assert " lost rate=0.01 steps=12 " not in err, "nothing is trained after the first round"
    told = json.loads((tmp_path / "results/card/lost.vs.json").read_text())[0]["questions"]["recall"]
    assert told["scores"] == {} and told["interval"] is None and told["rate"] is None


def test_a_mixer_that_works_up_to_max_len_is_built_for_the_longest_length_scored(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixer with a weight for each position, asked for parity at ten times the length it is trained at."""
    (tmp_path / "table.py").write_text(TABLE)
    free = {**TINY, "positions": "none"}
    parity = replace(
        TOY.questions[0], task="state_tracking:group=parity:length=24", metric=("by_length", "64"), model=free
    )
    monkeypatch.setattr(protocol, "TIERS", {"smoke": replace(TOY, questions=(parity,))})
    code, out, err = cli("card", "table.py", "--vs", "table", "--executor", "serial", "--json")
    assert code == 0, err
    assert not json.loads(out)[0]["questions"]["recall"]["diverged"], out


def test_a_dry_run_computes_nothing(tmp_path: Path, cli: Cli) -> None:
    code, out, _ = cli("card", "gru", "--dry-run")
    assert code == 0 and "recall" in out and not list(tmp_path.iterdir())


@pytest.mark.usefixtures("trained")
def test_more_seeds_are_of_this_mixer_alone_and_reuse_the_first_ones(cli: Cli) -> None:
    words = (*BESIDE_ITS_MODEL, "--json")
    before = Path("results/card/twin.vs.json").read_text()
    code, after, err = cli(*words, "--seeds", "4")
    assert code == 0, err
    first, second = (json.loads(text)[0] for text in (before, after))
    scores, more = (card["questions"]["recall"]["scores"] for card in (first, second))
    assert list(more) == ["0", "1", "2", "3"] == [str(seed) for seed in second["seeds"]]
    assert scores == {seed: more[seed] for seed in scores}
    trained = [line for line in err.splitlines() if "] done" in line]
    assert trained and not any("gru" in line for line in trained), "the field stays as it is"
    assert not any("seed=0" in line or "seed=1 " in line for line in trained), "stored runs are not trained again"
    code, _, err = cli(*words, "--seeds", "1")
    assert code == 2 and "--seeds 1: the field has 2" in err
    code, _, err = cli("card", "submit", "twin.py", "packed", "--seeds", "4", "--executor", "serial", "--vs", "gru")
    assert code == 0, err
    code, out, err = cli("card", "verify", resubmitted(Path("packed").resolve()))
    assert code == 3 and out == "consistent, not recomputed\n", err


def test_questions_may_be_told_apart_by_commas(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = [replace(TOY.questions[0], name=name) for name in ("recall", "parity", "copy")]
    monkeypatch.setattr(protocol, "TIERS", {"smoke": replace(TOY, questions=tuple(questions))})
    code, out, err = cli("card", "gru", "--vs", "gru", "--questions", "copy,recall", "--dry-run")
    assert code == 0 and [line.partition(":")[0] for line in out.splitlines()[:-1]] == ["recall", "copy"], err
    code, _, err = cli("card", "gru", "--questions", ",", "--dry-run")
    assert code == 2 and "no question ','" in err


def test_2_6_mixers_may_be_told_apart_by_commas(cli: Cli) -> None:
    asked = card_request.chosen(["delta_net,gru"])
    assert asked == card_request.chosen(["delta_net,", "gru"]) == card_request.chosen(["delta_net", "gru"])
    assert asked[:2] == (card_request.MIXERS, ["delta_net", "gru"])
    assert card_request.chosen(["hybrid:pattern=gru+(delta_net:num_heads=1),gru"])[1][1] == "gru"
    Path("a,b.py").write_text(LEAKING)
    assert card_request.chosen(["a,b.py"])[1] == ["leaking"], "a file is one word"
    code, _, err = cli("card", ",", "--dry-run")
    assert code == 2 and "','" in err


def test_2_6_a_file_that_is_no_python_is_not_run(cli: Cli) -> None:
    Path("README.md").write_text("print('run')")
    code, out, err = cli("card", "README.md")
    assert (code, out) == (2, "") and "README.md" in err and ".py" in err and "run\n" not in err


def test_a_budget_that_no_question_fits_is_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, second = replace(TOY.questions[0], steps=10**9), replace(TOY.questions[0], name="copy", steps=2 * 10**9)
    monkeypatch.setattr(protocol, "TIERS", {"smoke": replace(TOY, questions=(slow, second))})
    code, _, err = cli("card", "gru", "--vs", "gru", "--budget", "100s", "--dry-run")
    assert code == 0 and "recall alone may take longer than the budget (2 min): " in err, err
    assert "left out, to stay within the budget: copy" in err
    _, _, err = cli("card", "gru", "--vs", "gru", "--budget", "6", "--dry-run")
    assert "recall alone may take longer than the budget (6 s; did you mean 6m?): " in err
    assert err.count("timing a few steps") == 1, "what the budget and the plan say rests on one timing"


def test_a_budget_keeps_what_fits_after_a_question_that_does_not(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, second = replace(TOY.questions[0], steps=10**9), replace(TOY.questions[0], name="copy")
    monkeypatch.setattr(protocol, "TIERS", {"smoke": replace(TOY, questions=(slow, second))})
    code, out, err = cli("card", "gru", "--vs", "gru", "--budget", "10m", "--dry-run")
    assert code == 0 and "alone" not in err and "left out, to stay within the budget: recall" in err, err
    assert out.startswith("copy: ")


def test_what_was_left_out_stands_on_the_page_too(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    second = replace(TOY.questions[0], name="copy", steps=10**9)
    monkeypatch.setattr(protocol, "TIERS", {"smoke": replace(TOY, questions=(*TOY.questions, second))})
    code, out, err = cli("card", "gru", "--vs", "gru", "--executor", "serial", "--budget", "1h")
    assert code == 0 and "left out, to stay within the budget: copy" in out, err
    page = (tmp_path / "results/card/gru.vs.recall.html").read_text()
    assert not (tmp_path / "results/card/gru.vs.html").exists(), "a card of some questions takes no whole one's place"
    assert "Left out, to stay within the budget: copy." in page
    assert all(f"{column}: " in page for column in ("floor", "rank", "best of the field", "rates that work", "tasks"))
    assert "asked for 2 pairs" in page


@pytest.mark.usefixtures("trained")
def test_while_it_trains_it_says_how_long_what_for_and_of_which_question() -> None:
    """In the words of the card, not in those of the study that trains: a question, a mixer, a rate."""
    said = (MADE["card"] / "said").read_text().splitlines()
    rounds = [line.partition(":")[0] for line in said if " planned, " in line]
    assert said[0] == "twin keeps every promise of mixers", said
    assert said[1].startswith("without assay's short convolution (conv=0): twin; "), said
    assert said[1].endswith("`twin.py:twin:conv=4` puts one in front"), said
    assert said[2].startswith("timing a few steps"), said
    assert re.fullmatch(r"for twin: .+ in all, by .+, if .+; toy", said[3]), said
    assert rounds[:2] == ["round 1 of 5, rates at a third of the steps", "round 2 of 5, the best rates in full"], rounds
    assert rounds[2] == "round 3 of 5, the chosen rate with fresh seeds", rounds
    assert rounds[3] == "round 4 of 5, twice the training where the goal was not reached", rounds
    assert "estimate" not in " ".join(said), "it was said once, of all"
    assert any("recall twin rate=0.01 steps=4 seed=100" in line for line in said), said


def test_a_name_whose_file_lies_there_is_asked_for_by_its_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "twin.py").write_text(TWIN)
    code, _, err = cli("card", "twin", "--dry-run")
    assert code == 2 and "no mixer or attention method named 'twin'. Did you mean the file 'twin.py'?" in err


def test_a_flag_is_not_guessed_from_its_beginning(cli: Cli) -> None:
    code, _, err = cli("card", "gru", "--seed", "3", "--dry-run")
    assert code == 2 and "no flag '--seed'. Did you mean '--seeds'?" in err


def test_some_questions_alone_are_asked_and_named_in_the_file(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of one question takes no whole one's place."""
    again = replace(TOY.questions[0], name="again", steps=9)
    monkeypatch.setattr(protocol, "TIERS", {"smoke": replace(TOY, questions=(*TOY.questions, again))})
    words = ("card", "gru", "--vs", "base_conv", "--executor", "serial", "--json")
    code, out, err = cli(*words, "--questions", "again")
    assert code == 0 and json.loads(out)[0]["questions"].keys() == {"again"}, err
    assert sorted(file.name for file in Path("results/card").glob("*.html")) == ["gru.vs.again.html"]
    code, _, err = cli(*words, "--questions", "agian")
    assert code == 2 and "has no question 'agian'. Did you mean 'again'? It has recall, again." in err
    code, _, err = cli("card", "h2o", "--questions", "recall", "--dry-run")
    assert code == 2 and "--questions is for mixers" in err


def test_options_go_with_the_name_of_a_mixer_or_with_a_file_that_has_one(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "TIERS", {"smoke": TOY})
    (tmp_path / "twin.py").write_text(TWIN)
    code, out, err = cli("card", "twin.py:conv=4", "--vs", "gru", "--dry-run")
    assert code == 0 and "for twin:conv=4: " in out, err
    both = TWIN.replace("twin", "one").replace("Twin", "One") + TWIN.replace("twin", "two").replace("Twin", "Two")
    (tmp_path / "two.py").write_text(both)
    code, _, err = cli("card", "two.py:conv=4", "--dry-run")
    assert code == 2 and "options go with the name of a mixer: `assay card two.py NAME:conv=4`." in err
