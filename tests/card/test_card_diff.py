"""`assay card diff` compares two cards, question by question that both ask."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Cli = Callable[..., tuple[int, str, str]]


def test_two_cards_compare_and_a_worse_one_fails(tmp_path: Path, cli: Cli) -> None:
    def written(
        name: str, *scores: float, tier: str = "smoke", comparable: bool = True, mixer: str = "", lower: bool = False
    ) -> str:
        line = {"scores": {str(seed): value for seed, value in enumerate(scores)}, "deviation": 0.02, "freedom": 4}
        line |= {"lower_is_better": lower, "comparable": comparable}
        card = {"mixer": mixer or name, "protocol": 1, "tier": tier, "questions": {"recall": line}}
        Path(name).write_text(json.dumps([card]))
        return name

    good, same, bad = written("good", 0.9, 0.92), written("same", 0.91, 0.9), written("bad", 0.4, 0.42)
    assert cli("card", "diff", good, same)[:2][0] == 0
    code, out, _ = cli("card", "diff", good, bad)
    assert code == 1 and out.startswith("worse   recall: good 0.910 is better than bad 0.410, by 0.500 [0.4"), out
    code, out, _ = cli("card", "diff", bad, good)
    assert code == 0 and out.startswith("better  recall: good 0.910 is better than bad 0.410, by 0.500 [0.4"), out
    lower = [written(name, *scores, lower=True) for name, scores in (("one", (1.5, 1.52)), ("two", (1.8, 1.82)))]
    code, out, _ = cli("card", "diff", *lower)
    assert code == 1 and out.startswith("worse   recall: one 1.510 is better than two 1.810, by 0.300 [0.2"), out
    versions = [written(name, *scores, mixer="mine") for name, scores in (("old", (0.9, 0.92)), ("new", (0.4, 0.42)))]
    assert "old 0.910 is better than new 0.410" in cli("card", "diff", *versions)[1], "two versions of one mixer"
    code, out, _ = cli("card", "diff", good, written("edge", 0.4, 0.42, comparable=False))
    assert code == 0 and "recall: not compared" in out and "worse" not in out
    code, out, _ = cli("card", "diff", good, written("gone", comparable=False))
    assert code == 1 and "worse   recall: gone has no score, since its runs failed or diverged" in out, out
    code, _, err = cli("card", "diff", good, written("other", 0.9, 0.9, tier="full"))
    assert code == 2 and "do not compare" in err
    assert cli("card", "diff", good, "nowhere.json")[0] == 2
    code, _, err = cli("card", "diff", good, "page.html")
    assert code == 2 and "there is no 'page.json'; `assay card NAME --json` prints one" in err, err
    written("page.json", 0.9, 0.92)
    for seen in ("page.html", "page.svg"):
        code, _, err = cli("card", "diff", good, seen)
        assert code == 2 and f"'{seen}' is a card to look at, and the JSON beside it is wanted: give 'page.json'" in err
    less = Path("less")
    less.write_text(json.dumps([{"protocol": 1, "tier": "smoke", "questions": {}}]))
    code, _, err = cli("card", "diff", good, less)
    assert code == 2 and "share no question" in err
    more = json.loads(Path(same).read_text())
    more[0]["questions"]["parity"] = more[0]["questions"]["recall"]
    less.write_text(json.dumps(more))
    code, out, _ = cli("card", "diff", good, less)
    assert code == 0 and out.startswith("level   recall") and "parity: not compared, only one of the cards" in out, out


def test_cards_of_five_seeds_compare_seed_by_seed(tmp_path: Path, cli: Cli) -> None:
    """Seeds that lie far apart and all got a little worse: told from pairs, and not from the two means."""

    def written(name: str, scores: list[float]) -> str:
        line = {"scores": {str(seed): value for seed, value in enumerate(scores)}, "deviation": 0.2, "freedom": 40}
        line |= {"lower_is_better": False, "comparable": True}
        card = {"mixer": name, "protocol": 1, "tier": "standard", "questions": {"recall": line}}
        Path(name).write_text(json.dumps([card]))
        return name

    before = [0.2, 0.4, 0.6, 0.8, 0.9]
    old = written("old", before)
    code, out, _ = cli("card", "diff", old, written("new", [0.19, 0.38, 0.585, 0.78, 0.885]))
    assert code == 1 and "old 0.580 is better than new 0.564, by 0.016 [0.0" in out, out
    assert cli("card", "diff", old, written("odd", [0.19, 0.42, 0.585, 0.82, 0.885]))[0] == 0
    code, out, _ = cli("card", "diff", old, written("same", before))
    assert code == 0 and "are not told apart, +0.000 [+0.000, +0.000] for same, p 1" in out, out
    assert cli("card", "diff", old, written("other", [0.19, 0.38, 0.585, 0.78]))[0] == 0, "too few pairs"
    code, out, _ = cli("card", "diff", old, written("moved", [value - 0.001 for value in before]))
    assert code == 0 and "p 0.062" in out, "five seeds that moved as one are five signs that agree, not certainty"


def test_losses_on_one_text_compare_seed_by_seed_as_on_the_cards(tmp_path: Path, cli: Cli) -> None:
    """What a seed's text adds to both is no difference of theirs, and the cards know what is left."""

    def written(name: str, *scores: float, paired: bool = True) -> str:
        line: dict[str, Any] = {"scores": dict(zip("012", scores, strict=False)), "deviation": 0.1, "freedom": 20}
        line |= {"lower_is_better": True, "comparable": True}
        line |= {"paired": {"deviation": 0.005, "freedom": 19}} if paired else {}
        card = {"mixer": name, "protocol": 1, "tier": "smoke", "questions": {"language": line}}
        Path(name).write_text(json.dumps([card]))
        return name

    low, high = written("low", 2.0, 2.2), written("high", 2.05, 2.26)
    code, out, _ = cli("card", "diff", low, high)
    assert code == 1 and out.startswith("worse   language: low 2.100 is better than high 2.155, by 0.055 [0.0"), out
    assert "intervals: by how much high is better (+) or worse (-)" in out
    more = written("more", 2.05, 2.26, 2.15)
    told = [cli("card", "diff", *pair)[1].partition(":")[0] for pair in ((low, more), (more, low))]
    assert told == ["level   language"] * 2, "seeds that one card lacks pair with none, in either order"
    code, out, _ = cli("card", "diff", low, written("plain", 2.05, 2.26, paired=False))
    assert code == 0 and out.startswith("level   language"), out
