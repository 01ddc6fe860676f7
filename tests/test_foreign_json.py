"""Foreign JSON: whatever is missing, of another type, huge or nested in it, a command refuses it in one line; and
nothing that any file says reaches the terminal as a control character."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from assay.core.errors import LONGEST, UserError
from assay.studies.sae.saelens import CONFIG, WEIGHTS, load_saelens

Cli = Callable[..., tuple[int, str, str]]
TOY = Path(__file__).parent / "toy.py"
ESCAPE = "\x1b]0;owned\x07\x1b[2J"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
NESTED: Any = json.loads("[" * 60 + "]" * 60)
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 1e300, 10**299, "x", "", "A" * 1_000_000,
    [], [1], [None], {}, {"a": 1}, {"name": [1]}, NESTED,
)  # fmt: skip
LINE = {"scores": {"0": 0.9, "1": 0.92}, "deviation": 0.02, "freedom": 4, "lower_is_better": False, "comparable": True}
CARD = {
    "mixer": "a",
    "protocol": 5,
    "tier": "smoke",
    "questions": {"recall": {**LINE, "paired": {"deviation": 0.1, "freedom": 3}}},
}
CLAIMS = {
    "squares": {
        "claim": "Two squared is four.",
        "source": "Euclid",
        "study": "toy",
        "preset": "tiny",
        "options": {"seeds": [0, 1]},
        "grid": {"x": [1, 2]},
        "tables": ["squares"],
        "checks": [{"what": "the square", "metric": "square", "rows": {"x": 2}, "over": "max", "at_least": 5}],
        "certificate": {
            "about": "squares",
            "metric": "square",
            "tried": {"x": [1, 2, 3]},
            "longer": {"x": 2},
            "number": {"what": "the square", "metric": "square", "rows": {"x": 2}, "over": "max", "at_least": 4},
        },
    }
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def mutations(base: Any) -> Iterator[tuple[str, Any]]:
    """The value with each of its parts missing, under a name of another, or replaced by each odd value."""
    for path in places(base):
        for odd in ODD if path else ():
            changed = copy.deepcopy(base)
            inside(changed, path[:-1])[path[-1]] = odd
            yield f"{path} {str(odd)[:20]}", changed
        if path:
            changed = copy.deepcopy(base)
            held = inside(changed, path[:-1])
            taken = held.pop(path[-1])
            yield f"{path} missing", copy.deepcopy(changed)
            if isinstance(held, dict):
                held[ESCAPE + "k" * 1000] = taken
                yield f"{path} renamed", changed
    yield from ((f"all {str(odd)[:20]}", odd) for odd in ODD)


def inside(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def refused_or_answered(told: tuple[int, str, str], what: str) -> int:
    """No traceback has come, since the command runs in this process."""
    code, out, err = told
    assert code in (0, 1, 2, 3) and not CONTROL.search(out + err), what
    last = err.splitlines()[-1:]
    assert code != 2 or (last[0].startswith("assay: ") and len(last[0]) < LONGEST + 100), (what, err)
    return code


def test_3_4_a_card_with_anything_anywhere_is_compared_or_refused_in_one_line(tmp_path: Path, cli: Cli) -> None:
    good, odd = tmp_path / "good.json", tmp_path / "odd.json"
    good.write_text(json.dumps([CARD]))
    codes = []
    for what, changed in mutations([CARD]):
        odd.write_text(json.dumps(changed))
        codes += [refused_or_answered(cli("card", "diff", *pair), what) for pair in ((good, odd), (odd, good))]
    assert codes.count(2) > len(codes) / 2


@pytest.mark.timeout(300)
def test_3_4_claims_with_anything_anywhere_are_run_or_refused_in_one_line(tmp_path: Path, cli: Cli) -> None:
    path, codes = tmp_path / "claims.json", []
    where = ("--plugin", TOY, "--out", tmp_path / "out", "--executor", "serial", "--quick")
    for what, changed in mutations(CLAIMS):
        path.write_text(json.dumps(changed))
        codes.append(refused_or_answered(cli("reproduce", "all", "--file", path, *where), what))
    assert codes.count(2) > len(codes) / 2


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "\ufeff{}", '{"a": NaN}', '{"a": 1e999}', "9" * 5000, '"\\ud800"', ""]
)
def test_3_4_what_is_hardly_json_is_refused_by_every_reader(text: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "card.json").write_text(text)
    (tmp_path / "mixer.py").write_text("")
    path = tmp_path / "card.json"
    for words in (("card", "diff", path, path), ("card", "verify", tmp_path), ("reproduce", "--file", path)):
        assert refused_or_answered(cli(*words), str(words)) == 2


def tainted(folder: Path, name: str) -> tuple[str, ...]:
    """Write a file that says escapes wherever it may say something, and return the command that reads it."""
    path = str(folder / "x.json")
    match name:
        case "card diff":
            lines = {ESCAPE: CARD["questions"]["recall"], f"{ESCAPE}2": {**LINE, "comparable": False}}  # type: ignore[index]
            (folder / "x.json").write_text(json.dumps({**CARD, "mixer": ESCAPE, "questions": lines}))
            return ("card", "diff", path, path)
        case "card diff of two texts":
            (folder / "y.json").write_text(json.dumps({**CARD, "text": ESCAPE}))
            (folder / "x.json").write_text(json.dumps({**CARD, "text": f"{ESCAPE}2"}))
            return ("card", "diff", path, str(folder / "y.json"))
        case "card verify":
            told = {"seeds": [0], "field": {ESCAPE: [ESCAPE]}, "shipped": {}, "anchors": {}}
            (folder / "card.json").write_text(json.dumps({**CARD, **told, "mixer": ESCAPE}))
            return ("card", "verify", str(folder))
        case "card verify of a tier":
            told = {"seeds": [0], "field": {}, "shipped": {}, "anchors": {}}
            (folder / "card.json").write_text(json.dumps({**CARD, **told, "tier": ESCAPE}))
            return ("card", "verify", str(folder))
        case "reproduce --file":
            claim = {**CLAIMS["squares"], "claim": ESCAPE, "source": ESCAPE}
            (folder / "x.json").write_text(json.dumps({ESCAPE: claim}))
            return ("reproduce", "--file", path)
        case "reproduce a name":
            (folder / "x.json").write_text(json.dumps({ESCAPE: {**CLAIMS["squares"], "study": ESCAPE}}))
            return ("reproduce", "all", "--file", path)
        case "perplexity --config":
            (folder / "x.json").write_text(json.dumps({"name": ESCAPE, "model": {"name": ESCAPE}, "methods": [ESCAPE]}))
            return ("perplexity", "--config", path, "--dry-run")
        case "perplexity, model":
            (folder / "x.json").write_text(json.dumps({"model": {"name": ESCAPE}}))
            return ("perplexity", "--config", path, "--dry-run", "--offline")
        case "sae ablation --config":
            (folder / "x.yaml").write_text(json.dumps({"configurations": [{"name": ESCAPE, ESCAPE: ESCAPE}]}))
            return ("sae", "ablation", "--config", str(folder / "x.yaml"), "--dry-run")
        case "sae benchmark --config":
            (folder / "x.yaml").write_text(json.dumps({"models": [{"name": ESCAPE, "type": ESCAPE}]}))
            return ("sae", "benchmark", "--config", str(folder / "x.yaml"), "--dry-run")
        case "modular similarity":
            safetensors.numpy.save_file({}, folder / "x.safetensors")
            told = {"format": ESCAPE, "sha256": ESCAPE, "P": ESCAPE, "models": [{ESCAPE: ESCAPE}], "recipe": {}}
            (folder / "x.json").write_text(json.dumps(told))
            return ("modular", "similarity", str(folder / "x.safetensors"))
        case "modular similarity of a pickle":
            (folder / "x.pkl").write_bytes(b"c" + ESCAPE.encode() + b"\n" + ESCAPE.encode() + b"\n.")
            return ("modular", "similarity", str(folder / "x.pkl"))
        case "icl, a text":
            (folder / f"{ESCAPE.replace('/', '')}.txt").write_bytes(b"\xff\x1b")
            return ("icl", f'text:corpus="{json.dumps(str(folder))[1:-1]}"', "--dry-run")
        case _:
            raise AssertionError(name)


COMMANDS = (
    "card diff", "card diff of two texts", "card verify", "card verify of a tier", "reproduce --file",
    "reproduce a name", "perplexity --config", "perplexity, model", "sae ablation --config", "sae benchmark --config",
    "modular similarity", "modular similarity of a pickle", "icl, a text",
)  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_3_3_no_escape_of_a_file_reaches_the_terminal(name: str, tmp_path: Path, cli: Cli) -> None:
    code, out, err = cli(*tainted(tmp_path, name), "--plugin", TOY)
    assert code in (0, 1, 2) and out + err and not CONTROL.search(out + err), (code, out, err)


def test_3_3_errors_are_printable_in_python_too(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({"d_in": 2, "d_sae": 3, ESCAPE: ESCAPE * 10_000}))
    safetensors.numpy.save_file({}, tmp_path / WEIGHTS)
    with pytest.raises(UserError) as refused:
        load_saelens(tmp_path)
    assert not CONTROL.search(str(refused.value)) and len(str(refused.value)) < LONGEST + 100
