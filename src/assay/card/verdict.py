"""What may be said of one mixer on one question, and the certificate under it: the parts are those of a finding.

    recipe              no run at the best rate diverged, that rate is at no edge of those tried, and none did better
                        in a third of the steps
    doubled training    no seed gains more than STILL by it, in score or in validation, and none comes as near to the
                        goal; where some seeds reach it, as many do. A run that ended early, or never got to the size
                        that is scored, was not trained twice as long on it
    seeds               all reach the goal, or none does

The first two are not asked where every seed reached the goal. Without them the verdict is `not converged`, and says
nothing of what a mixer cannot do. A finding has the same parts (report/certificate.py), with stricter rules: more
recipes, intervals in place of STILL, and as many seeds as its number needs. A card is made of few runs.
"""

import math

from assay.card.battery import Answer, Bounds
from assay.card.protocol import STILL
from assay.metrics.intervals import Interval
from assay.report.certificate import Part


def parts_of(mine: Answer) -> tuple[Part, ...]:
    """Return the three parts of its certificate."""
    seeds = Part("seeds", *_seeds(mine))
    if mine.reached:
        reached = [Part(name, True, "the goal was reached", asked=False) for name in ("recipe", "doubled training")]
        return (*reached, seeds)
    doubled = Part("doubled training", *_doubled(mine), asked=mine.question.goal is not None)
    return Part("recipe", *_recipe(mine)), doubled, seeds


def _recipe(mine: Answer) -> tuple[bool, str]:
    if mine.lost == "diverged":
        error = f"; one run failed, {mine.failed}" if mine.failed else ""
        return False, f"no run gave a number, at rates of {mine.tried[0]:g} to {mine.tried[-1]:g}: they diverged{error}"
    if mine.failed:
        return False, f"its runs failed, {mine.failed}"
    if mine.diverged:
        return False, f"{mine.diverged} run{'s'[: mine.diverged > 1]} diverged at the best rate"
    if mine.outdone:
        return False, mine.outdone
    told = f"the best rate, {mine.rate:g}, is at {{}} of those tried, {mine.tried[0]:g} to {mine.tried[-1]:g}"
    if mine.at_edge:
        return False, told.format("the edge")
    if mine.rate in (mine.tried[0], mine.tried[-1]):
        return True, f"{told.format('the edge')}, but those trained in full come out alike"
    return True, told.format("no edge")


def _doubled(mine: Answer) -> tuple[bool, str]:
    goal, seeds = mine.question.goal, len(mine.scores)
    if goal is None:
        return False, "it has no goal, and longer training would improve it"
    if mine.stopped:
        return False, "training ends once what it trains on is learned, and this is not"
    if mine.held_back and not mine.reached_by:
        told = f"do not learn the smallest size, {mine.smallest}, also with twice the training, and so were never"
        scored = mine.question.metric[-1]
        return False, f"{mine.held_back} of {seeds} seeds {told} trained on the one that is scored, {scored}"
    gains = [mine.longer[seed] - score for seed, score in mine.scores.items() if seed in mine.longer]
    if len(gains) < seeds:
        return False, "it was not trained twice as long with every seed"
    if mine.reached_by:
        after = sum(score >= goal for score in mine.longer.values())
        return after == mine.reached_by, f"{after} of {seeds} reach the goal with twice the training"
    if max(gains) <= STILL < mine.learned_more:
        return False, f"twice the training still improves what is trained on, by up to {mine.learned_more:+z.2f}"
    still = max(gains) <= STILL and max(mine.longer.values()) <= goal - STILL
    return still, f"twice the training moves the score by {'at most' if still else 'up to'} {max(gains):+z.2f}"


def _seeds(mine: Answer) -> tuple[bool, str]:
    seeds, reached = len(mine.scores), mine.reached_by
    if mine.lost:
        return False, "none has a score"
    if mine.question.goal is None:
        return seeds > 1, str(seeds)
    agree = reached in (0, seeds) and seeds > 1
    told = f"{'all agree, ' if agree else ''}{reached} of {seeds} reach the goal"
    if agree:  # what so many seeds leave open, one-sided at 95 %
        rare = 0.05 ** (1 / seeds)
        told += f", so {f'at least {rare:.0%}' if reached else f'at most {1 - rare:.0%}'} of all do".replace("%", " %")
    return agree, told


def verdict_of(mine: Answer) -> str:
    """Say with how many seeds the goal was reached; that none reached it only with a certificate; without a goal the
    number, which says nothing of what a mixer cannot do."""
    question = mine.question
    recipe, doubled, _ = parts_of(mine)
    if mine.failed:
        shown = f"`assay show {mine.failed_run} --out FOLDER`, the folder of this card, has the whole error"
        return f"{question.name}: {recipe.said}; {shown}"
    if mine.lost:
        return f"{question.name}: {recipe.said}"
    told = f"{question.does} with {mine.reached_by or 'none'} of {len(mine.scores)} seeds ({question.setting})"
    lacking = next((part.said for part in (recipe, doubled) if not part.holds and part.asked), "")
    if mine.reached_by:
        return f"{told}; not converged: {lacking}" if lacking else told
    if lacking:
        return f"{question.name}: not converged, no verdict on it alone: {lacking}"
    if question.goal is None:
        return f"{mine.mean:.2f} {question.does} ({question.setting})"
    return f"{told}, nor with twice the training"


def beside_a_guess(mine: Answer, interval: Interval, bounds: Bounds) -> str:
    """Say so where a mixer scores less than a guess, or no more, or is not told from one, or n-grams do better."""
    loss = mine.question.loss
    ends = [loss(end) for end in (interval.low, interval.high) if end is not None]
    if mine.failed or mine.diverged or mine.outdone:
        return ""
    if min(ends, default=-math.inf) > loss(bounds.floor):
        return "worse than a guess"
    if loss(mine.mean) >= loss(bounds.floor):
        return "no better than a guess"
    if bounds.ngram is not None and loss(mine.mean) > loss(bounds.ngram):
        return f"worse than an n-gram predictor ({bounds.ngram:.2f})"
    return "not told from a guess" if max(ends, default=-math.inf) >= loss(bounds.floor) else ""
