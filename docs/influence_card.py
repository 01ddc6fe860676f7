"""Write into docs/card.md on which mixers the correlations of the battery hang, and what its language models reach.

python docs/influence_card.py
"""

from pathlib import Path
from statistics import fmean, stdev

from masks_perplexity import between
from scipy import stats

from assay.card.battery import Answer, Records, Trial, answer, battery
from assay.card.judge import pooled
from assay.card.protocol import TIERS
from assay.card.question import Tier
from assay.card.running import reader
from assay.card.validity import LEAST
from assay.metrics.ranks import spearman

PAGE = Path(__file__).parent / "card.md"
PAIR = ("attention:conv=4", "based:conv=4")
UNGATED = (*PAIR, "attention", "sliding_window:conv=4", "linear_attention:conv=4")
WITHOUT_STATE = ("attention", "sliding_window", "hyena", "base_conv")
"""Mixers that look back instead of carrying a state of one size."""

Answers = dict[str, dict[str, Answer]]


def shown() -> str:
    """The table of correlations, and the lines on language models."""
    lines = ["| tier | question | every mixer | without the first two | without all five |", "|---|---|---|---|---|"]
    told = []
    for tier in TIERS.values():
        runner = reader(tier)
        field = runner.field()
        if not any(field.values()):
            continue
        found = battery(tier, field, runner.only_shipped)
        answers = {q.name: {word: answer(tier, q, word, found) for word in field[q.name]} for q in tier.questions}
        for name in ("recall", "update"):
            cells = [_with_language(answers, name, without) for without in ((), PAIR, UNGATED)]
            lines.append(f"| {tier.name} | {name} | {' | '.join(cells)} |")
        told.append(_language(tier, answers, found))
        told.append(_least(tier, answers))
        told.append(_seeds(tier, list(answers["language"].values())))
        carried = [own for word, own in answers["recall"].items() if word.partition(":")[0] not in WITHOUT_STATE]
        rho = spearman([own.mean for own in carried], [own.sizes["state_scalars"] for own in carried])
        told.append(f"- `{tier.name}`: recall and bytes of state of {len(carried)} recurrent mixers: {rho:+z.2f}.")
    return "\n".join([*lines, "", *told])


def _with_language(answers: Answers, name: str, without: tuple[str, ...]) -> str:
    both = answers[name], answers["language"]
    words = [w for w in both[0] if w in both[1] and w not in without and all(each[w].comparable for each in both)]
    if len(words) < LEAST:
        return f"too few ({len(words)})"
    rho = spearman([both[0][word].mean for word in words], [-both[1][word].mean for word in words])
    return f"{rho:+z.2f} of {len(words)}"


def _least(tier: Tier, answers: Answers) -> str:
    """The rho that would be told from zero, by Student's t: the level of Holm's first of all questions, twice each."""
    rows, mixers = 2 * (len(tier.questions) - 1), len(answers["language"])
    t = float(stats.t.ppf(1 - 0.05 / (2 * rows), mixers - 2))
    rho = t / (mixers - 2 + t * t) ** 0.5
    return f"- `{tier.name}`: to be told from zero over {mixers} mixers takes a rho of {rho:.2f}."


def _seeds(tier: Tier, answers: list[Answer]) -> str:
    """How far the means of seeds lie apart, and what is left of a mixer's scores without them."""
    left, _ = pooled(answers, paired=True)
    means = [fmean(each.scores[seed] for each in answers) for seed in tier.seeds]
    return (
        f"- `{tier.name}`: the mean bits per byte of all mixers differs between seeds by {stdev(means):.3f} (standard "
        f"deviation), and a mixer's own by {left:.3f} beside that."
    )


def _language(tier: Tier, answers: Answers, found: Records) -> str:
    """What the language models reach, beside the task's own predictors."""
    refs = [found[Trial("language", seed=seed)].metrics["references"] for seed in tier.seeds]
    question = tier.question("language")
    of = {
        word: [Trial("language", word, own.rate, seed, question.steps) for seed in tier.seeds]
        for word, own in answers["language"].items()
    }
    recalled = [fmean(found[each].metrics["bits_per_byte_recalled"] for each in trials) for trials in of.values()]
    ngram, copy = (
        fmean(ref[name][key] for ref in refs)
        for name, key in (("ngram", "bits_per_byte"), ("copy", "bits_per_byte_recalled"))
    )
    best = min(own.mean for own in answers["language"].values())
    return (
        f"- `{tier.name}`: the best mixer has {best:.2f} bits per byte, an n-gram predictor {ngram:.2f}; of the bytes "
        f"that recall would tell, copying leaves {copy:.2f} bits and the mixers {min(recalled):.2f} to "
        f"{max(recalled):.2f}."
    )


def placed(page: str) -> str:
    return between(page, "influence", shown())


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
