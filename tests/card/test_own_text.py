"""`assay card --text FOLDER` asks `language` of the user's text: other runs, whose field is trained here."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from card_toys import TINY, TOY

from assay.api import Execution
from assay.card import cost, protocol
from assay.card.battery import Trial
from assay.card.exchange import changes
from assay.card.mixer_battery import battery_of
from assay.card.own_text import EPOCHS, with_text
from assay.card.protocol import ANCHORS, LANGUAGE, SMOKE
from assay.card.request import Request
from assay.card.running import Runner
from assay.core.errors import UserError

Cli = Callable[..., tuple[int, str, str]]


def written(folder: Path, documents: int, repeats: int) -> str:
    """A folder of different documents."""
    folder.mkdir()
    for number in range(documents):
        (folder / f"{number}.txt").write_text(f"document {number} says so. " * repeats)
    return str(folder)


def request(*vs: str, text: str | None) -> Request:
    return Request(lambda session: [], vs=vs, text=text, placing={"device": "cpu"})


def test_language_is_another_run_and_the_other_questions_stay_as_they_ship(tmp_path: Path) -> None:
    text = written(tmp_path / "mine", 12, 1000)
    own, shipped = (Runner(tier, Execution(), lambda session: []) for tier in (with_text(SMOKE, text), SMOKE))
    for question in SMOKE.questions:
        trial = Trial(question.name, "delta_net", 1e-3, 0, question.steps)
        assert (own.run_of(trial).id == shipped.run_of(trial).id) is (question.name != LANGUAGE.name)
    assert text in own.tier.question("language").does
    first = own.run_of(Trial("language", "delta_net", 1e-3, 0, 1200)).id
    (tmp_path / "mine" / "0.txt").write_text("another document. " * 1000)
    edited = Runner(with_text(SMOKE, text), Execution(), lambda session: [])
    assert edited.run_of(Trial("language", "delta_net", 1e-3, 0, 1200)).id != first, "an edited text is another run"


def test_the_field_of_a_text_is_trained_here_and_that_of_the_others_ships(tmp_path: Path) -> None:
    text = written(tmp_path / "mine", 12, 1000)
    found = battery_of(request(text=text), ["mamba2"])
    assert found.field["language"] == list(ANCHORS) and len(found.field["recall"]) == len(protocol.FIELD) - 1
    assert not found.runner.ships("delta_net", "language") and found.runner.ships("delta_net", "recall")
    chosen = battery_of(request("gru", "kda", text=text), ["mamba2"])
    assert set(map(tuple, chosen.field.values())) == {("gru", "kda")}


@pytest.mark.parametrize(
    ("documents", "repeats", "said"),
    [(None, 0, "no text"), (0, 0, "holds no text"), (2, 1000, "3 are needed"), (12, 20, "too small"),
     (5, 5, "too small, 0 bytes")],
    ids=["missing", "empty", "two documents", "few bytes", "short documents"],
)  # fmt: skip
def test_a_text_that_cannot_be_asked_is_one_line(
    documents: int | None, repeats: int, said: str, tmp_path: Path, cli: Cli
) -> None:
    text = str(tmp_path / "mine")
    if documents is not None:
        written(tmp_path / "mine", documents, repeats)
    code, out, err = cli("card", "gru", "--text", text, "--out", str(tmp_path / "results"))
    assert code == 2 and not out and len(err.splitlines()) == 1, err
    assert err.startswith(f"assay: --text {text}: ") and said in err, err


def test_a_text_is_read_four_times_at_most(tmp_path: Path) -> None:
    text = written(tmp_path / "mine", 10, 30)
    there = 8 * (30 * len("document 0 says so. ") - 1)  # a tenth each is validated with and tested on
    enough = replace(LANGUAGE, steps=EPOCHS * there // 256, batch=1)
    with_text(replace(SMOKE, questions=(enough,)), text)
    with pytest.raises(UserError, match="too small"):
        with_text(replace(SMOKE, questions=(replace(enough, steps=enough.steps + 1),)), text)


def test_methods_have_no_text_to_choose(cli: Cli) -> None:
    code, _, err = cli("card", "h2o", "--text", "anywhere")
    assert code == 2 and "--text is for mixers" in err


def test_a_card_says_which_text_and_has_files_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    language = replace(LANGUAGE, task="text:input_seq_len=16", model=TINY, steps=12, every=6, batch=4, eval_size=8,
                       rates=(1e-7, 1e-2, 30.0))  # fmt: skip
    monkeypatch.setattr(protocol, "TIERS", {"smoke": replace(TOY, questions=(language,))})
    monkeypatch.setattr(cost, "LENGTH", 16)
    monkeypatch.setattr(cost, "REPEATS", 1)
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "mine", 6, 10)
    words = ("card", "gru", "--text", "mine", "--executor", "serial")
    code, out, err = cli(*words, "--vs", "base_conv")
    assert code == 0, err
    assert "bits per byte of documents of mine it was not trained on" in " ".join(out.split()) and "†" not in out
    assert "\nlanguage: of the text mine, " in out
    told = json.loads(Path("results/card/gru.mine.vs.json").read_text())[0]
    assert told["text"].startswith("text:corpus=mine:") and "sha256=" in told["text"]
    assert "corpus=mine" in Path("results/card/gru.mine.vs.html").read_text()
    elsewhere = {key: value for key, value in told.items() if key != "text"}
    with pytest.raises(UserError, match="differ in their text"):
        changes(told, elsewhere)
