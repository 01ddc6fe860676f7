"""What has to stand under a verdict before it may be published.

    recipe              the seeds tell no recipe of the grid apart as better than the claim's own, its own is at no
                        edge, and no mean at an edge is better by more than 2 %; otherwise the grid gets the next value
                        there, up to a limit. A better mean that is not told apart is named, with the paired difference.
                        Of a claim that chooses by itself, the interval of that difference has to end below 2 %
    doubled training    twice the training leaves the number inside its interval; of a worst or best seed, the mean of
                        the seeds inside theirs, the share that passes inside Wilson's, and the verdict as it is. Not
                        asked where the goal was reached. A claim that chooses its recipe by itself is doubled at the
                        best of each arm
    seeds               as many as tell the difference seen from the limit, four times out of five; of a worst or best
                        seed at least three, and how many of them come out as wanted

An "it cannot be learnt" from models that fail one of the first two is no finding: its verdict is `not converged`, and
too few seeds make it `undecided`. `assay findings` reads what is stored, `assay reproduce` computes what is not: both
call `examined`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from assay.core.run import Record, Run
from assay.metrics.intervals import Interval, student_t
from assay.report.claims import Certificate, Claim, Judged, Measured, Verdict, judge, seeds_needed, worst
from assay.report.recipes import Look, searched, stored_of, varied

FEWEST = 3
"""Seeds of which the worst or the best decides: with fewer, most of all seeds may do otherwise."""


def every(run: Run) -> bool:
    """Keep all runs of a claim."""
    return True


@dataclass(frozen=True)
class Part:
    """One part of a certificate."""

    name: str
    holds: bool
    said: str
    asked: bool = True
    """Whether it was measured: not of a claim that needs no training, or whose goal was reached."""

    def __str__(self) -> str:
        return f"{self.name}: {('holds' if self.holds else 'fails') if self.asked else 'not asked'}, {self.said}"


def whole(parts: Sequence[Part]) -> bool:
    """Whether a certificate holds: of a claim, or of a line on a card (card/verdict.py)."""
    return bool(parts) and all(part.holds for part in parts)


@dataclass(frozen=True)
class Finding:
    """A claim with the verdict on each of its checks, and its certificate."""

    name: str
    claim: Claim
    judged: tuple[Judged, ...] = ()
    records: tuple[Record, ...] = ()
    reason: str = ""
    """Why nothing could be planned, such as a data set that is not on this machine."""
    parts: tuple[Part, ...] = ()
    behind: tuple[Record, ...] = ()
    """Records that the certificate rests on."""
    numbers: tuple[Judged, ...] = ()
    """The certificate's number, from the claim's training and from twice as much."""

    @property
    def checked(self) -> Verdict:
        return worst(one.verdict for one in self.judged) if self.judged else Verdict("no record")

    @property
    def verdict(self) -> Verdict:
        return certified(self.checked, self.claim, self.parts)

    @property
    def publishable(self) -> bool:
        """Whether a README or a sentence may state it: it is decided, and every part of its certificate holds."""
        decided = self.verdict.word in ("reproduced", "not reproduced")
        return decided and whole(self.parts)

    @property
    def deciding(self) -> Judged | None:
        """The check that the verdict is that of."""
        return next((one for one in self.judged if one.verdict == self.checked), None)


def examined(name: str, claim: Claim, look: Look, measured: Measured = lambda check, records: None) -> Finding:
    """Judge a claim, with its certificate. What the goal makes superfluous is not looked at."""
    runs, stored = look(claim, every)
    found = _judged(name, claim, runs, stored, measured)
    certificate = claim.certificate
    if certificate is None:
        why = claim.exempt or "not looked at"
        untrained = [Part(part, bool(claim.exempt), why, asked=False) for part in ("recipe", "doubled training")]
        return replace(found, parts=(*untrained, enough(found.judged)))
    if certificate.goal and found.checked.word == "reproduced":
        reached = [Part(part, True, "the goal was reached", asked=False) for part in ("recipe", "doubled training")]
        return replace(found, parts=(*reached, enough(found.judged)))
    search = searched(claim, runs, look)
    chooses = any(arm.chooses for arm in search.arms)
    if chooses:
        claim = replace(claim, grid={**claim.grid, **search.tried})
        runs, stored = look(claim, search.has_compared)
        found = _judged(name, claim, runs, stored, measured)
    of_the_best = chooses and not certificate.number.rows.keys() & search.tried.keys()
    doubled, more = look(varied(claim, certificate.longer), search.has_chosen if of_the_best else every)
    before, after = (judge(certificate.number, *those, measured) for those in ((runs, stored), (doubled, more)))
    recipe = Part("recipe", search.holds, search.said)
    parts = recipe, steady(certificate, before, after), enough(found.judged)
    behind = (*search.records, *stored_of(doubled, more))
    return replace(found, parts=parts, behind=behind, numbers=(before, after))


def _judged(name: str, claim: Claim, runs: Sequence[Run], stored: Mapping[str, Record], measured: Measured) -> Finding:
    judged = tuple(judge(check, runs, stored, measured) for check in claim.checks)
    return Finding(name, claim, judged, stored_of(runs, stored))


def certified(verdict: Verdict, claim: Claim, parts: Sequence[Part]) -> Verdict:
    """The verdict, unless the claim needs a certificate for it that does not hold."""
    if verdict.word == "no record" or claim.certificate is None:
        return verdict
    training = [part for part in parts if part.name != "seeds"]
    holds = training and all(part.holds for part in training)
    return verdict if holds else Verdict("not converged", about=claim.certificate.about)


def enough(judged: Sequence[Judged]) -> Part:
    """Whether the seeds tell each number from its limit; the check that needs most of them speaks for all. Where some
    numbers are told from it on the wrong side, those decide, whatever the others are."""
    judged = [one for one in judged if one.verdict.word == "not reproduced"] or judged
    if not judged or any(one.found is None for one in judged):
        return Part("seeds", False, "no number to tell from its limit")
    if not any(one.check.unit for one in judged):
        return Part("seeds", True, "nothing is drawn: another run gives the same number", asked=False)
    pooled = [(one, found) for one in judged if (found := one.found) is not None and found.low is not None]
    if not pooled:
        return _counted(judged)
    needed = {place: seeds_needed(one.check, found) or math.inf for place, (one, found) in enumerate(pooled)}
    most = max(needed, key=lambda place: needed[place] / pooled[place][1].n)
    one, found = pooled[most]
    holds, unit = found.n >= needed[most], "" if one.check.unit == "seed" else f" {one.check.unit}s"
    asked = f"{needed[most]} {'are enough' if holds else 'are needed'} to decide"
    asked = "no number would decide" if math.isinf(needed[most]) else asked
    return Part("seeds", holds, f"{found.n}{unit}; {asked} ({one.check.what})")


def _counted(judged: Sequence[Judged]) -> Part:
    """Say how many seeds pass where one of them decides a check: the worst, or the best if one has to reach a goal."""
    count = min(one.found.n for one in judged if one.found is not None)
    said = str(count)
    if all_of_them := [one for one in judged if one.by_seed and not one.check.once]:
        least = min(all_of_them, key=lambda one: one.passed.mean)
        failing = 1 - 0.05 ** (1 / count)  # the largest share of which none among so many is seen once in 20 times
        all_pass = f"all as wanted: with 95 % confidence fewer than {failing:.0%} of all seeds are not"
        said += f", {all_pass}" if least.passed.mean == 1 else f", of which {_passed(least)} ({least.check.what})"
    if once := [one for one in judged if one.by_seed and one.check.once]:
        least = min(once, key=lambda one: one.passed.mean)
        said += f"; where a goal has to be reached once, {_passed(least)} ({least.check.what})"
    return Part("seeds", count >= FEWEST, said)


def _passed(one: Judged) -> str:
    share, n = one.passed, len(one.by_seed)
    return f"{round(share.mean * n)} of {n} as wanted, {share.mean:.2f} [{share.low:.2f}, {share.high:.2f}]"


def steady(certificate: Certificate, before: Judged, after: Judged) -> Part:
    """Compare the certificate's number from the claim's training with that from twice as much: means, or where the
    number is that of one seed, the shares of seeds that pass."""
    doubled = ", ".join(f"{key} {value}" for key, value in certificate.longer.items())
    if before.found is None or after.found is None:
        return Part("doubled training", False, f"{doubled}: {after.reason or before.reason}")
    both, numbers = (before.found, after.found), [before.number, after.number]
    within = _within(*both)
    if certificate.number.over != "mean":
        means = (student_t(list(one.by_seed.values())) for one in (before, after))
        within = _within(*means) and _within(before.passed, after.passed)
        numbers = [f"{one.number}, of which {_passed(one)}" for one in (before, after)]
    said = f"{certificate.number.what}: " + f"; with {doubled} ".join(numbers)
    # Of few seeds the share that passes has a wide interval, in which a verdict may turn over.
    turned = {before.verdict.word, after.verdict.word} == {"reproduced", "not reproduced"}
    return Part("doubled training", within and not turned, said)


def _within(before: Interval, after: Interval) -> bool:
    """Whether the mean after lies in the interval before; without an interval, whether it is the same."""
    if before.low is None or before.high is None:
        return before.mean == after.mean
    return before.low <= after.mean <= before.high
