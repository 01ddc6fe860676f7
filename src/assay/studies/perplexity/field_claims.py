"""Claims about methods of eviction that the field's records decide (the presets `methods` and `methods-prefix`).

Each says that one method loses less than another while it holds as many bytes, at each of three budgets, or that it
gets more of the answers of probes right. The difference is paired over documents, or over the texts of all probes
(bootstrap), and told after Holm over all differences of a page.

Answers count where what is asked for lies before the end of the text. At its end (a depth of 1) keeping the latest keys
is enough, as most methods always do: such texts would decide who keeps the end, and `at_end` gives them apart.

    told(records, field_claims("methods", "smollm2-135m"))[0].verdict     "holds"
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from assay.attention import attention
from assay.core.errors import UserError
from assay.core.run import Record, canonical
from assay.metrics.bootstrap import ratio_difference, ratio_difference_p
from assay.metrics.intervals import SIGNIFICANT, Interval, holm
from assay.report.claims import Check, Claim, Judged, Verdict, by_identity, has_options, judge
from assay.studies.perplexity.cells import form
from assay.studies.perplexity.claims import CLUSTERS, EQUAL, EXEMPT, clusters_of
from assay.studies.perplexity.field import ASKED, FIELDS
from assay.studies.perplexity.perplexity import counts_in_cache

ONLINE, PREFIX = "methods", "methods-prefix"
END = 1.0
"""The depth of an answer that is the last sentence before the question."""
TEXTS = 20
"""Of one probe, before the end: five at each of four depths."""
PUBLISHED = {
    ONLINE: (
        ("streaming_llm", "window", "Xiao et al. 2024, arXiv 2309.17453"),
        ("h2o", "random_evict", "Zhang et al. 2023, arXiv 2306.14048"),
        ("tova", "streaming_llm", "Oren et al. 2024, arXiv 2401.06104"),
    ),
    PREFIX: (
        ("snapkv", "streaming_llm", "Li et al. 2024, arXiv 2404.14469"),
        ("expected_attention", "snapkv", "Devoto et al. 2025, arXiv 2510.00636"),
        ("keydiff", "random_evict", "Park et al. 2025, arXiv 2504.15364"),
    ),
}
"""Which method loses less than which, and who says that it helps. The claim here is narrower than a paper: of one model
and one text."""


def field_claims(preset: str, model: str) -> list[Claim]:
    """Return the claims about a model's loss under one protocol."""
    return [
        _claim(
            preset,
            model,
            source,
            f"{form_of(preset, method)} loses less than {form_of(preset, than)} while it holds as many bytes, at every "
            f"budget ({model}, {preset}).",
            f"nats per token that {method} loses more than {than} at k={{}}, over {CLUSTERS} documents",
            partial(more_loss, method=method, than=than),
            at_most=0,
        )
        for method, than, source in PUBLISHED[preset]
    ]


def probe_claims(preset: str, model: str) -> list[Claim]:
    """Return the claims about the answers of probes under one protocol: that the same methods help where what is asked
    for does not lie at the end."""
    probes = len(FIELDS[f"{preset}-probes"]["probes"])
    return [
        _claim(
            preset,
            model,
            source,
            f"{form_of(preset, method)} gets more tokens of the answers right than {form_of(preset, than)} while it "
            f"holds as many bytes, at every budget ({model}, {preset}, {probes} probes together, depths below 1).",
            f"share of the answers' tokens that {method} has right more than {than} at k={{}}",
            partial(more_right, method=method, than=than, texts=TEXTS * probes),
            {"dataset.floor": False},
            at_least=0,
        )
        for method, than, source in PUBLISHED[preset]
    ]


def form_of(preset: str, name: str) -> str:
    """Return a method's name as its rows have it, with what differs from its published form under a protocol."""
    (method,) = (each for word in ASKED[preset]["methods"] if (each := attention.parse(word)).name == name)
    positions = ASKED[preset].get("positions", "absolute") if counts_in_cache(method) else "absolute"
    return form(method, positions)


def _claim(
    preset: str,
    model: str,
    source: str,
    said: str,
    what: str,
    measure: Callable[..., Interval],
    among: Mapping[str, Any] | None = None,
    **limit: Any,
) -> Claim:
    """Return a claim with one check per budget; `among` are the options of the records that count."""
    rows = {"model": model, **(among or {}), **({"protocol": "prefix"} if preset == PREFIX else {})}
    return Claim(
        claim=said,
        source=source,
        study="perplexity",
        preset=preset,
        options={"model": model},
        exempt=EXEMPT,
        checks=tuple(
            Check(
                what=what.format(slots), measure=measure, rows={"budget.slots": slots, **rows}, unit="cluster", **limit
            )
            for slots in ASKED[preset]["budgets"]
        ),
    )


def more_loss(records: Sequence[Record], *, method: str, than: str) -> Interval:
    """Return the nats per token that a method loses more than another. Raises UserError where they do not hold as many
    bytes, to 2 %, or were not scored on all documents."""
    one, other = clusters_of(records, method), clusters_of(records, than)
    if len(one[0]) != CLUSTERS or len(other[0]) != CLUSTERS:
        raise UserError(f"{method} and {than} were measured on {len(one[0])} and {len(other[0])} documents")
    _as_many_bytes(records, method, than)
    return ratio_difference(*one, *other)


def more_right(records: Sequence[Record], *, method: str, than: str, texts: int) -> Interval:
    """Return the share of the tokens of all answers before the end that a method has right more than another. Raises
    UserError where they do not hold as many bytes, to 2 %, or did not read all texts of every probe."""
    one, other = answers_of(records, method), answers_of(records, than)
    if len(one[0]) != texts or len(other[0]) != texts:
        raise UserError(f"{method} and {than} were asked {len(one[0])} and {len(other[0])} of {texts} texts")
    _as_many_bytes(records, method, than)
    return ratio_difference(*one, *other)


def answers_of(records: Sequence[Record], method: str, *, at_end: bool = False) -> tuple[list[float], list[float]]:
    """Return the right tokens and all tokens of each answer that a method was asked for, before the end of the text or
    at it, in one order of probes and texts."""
    found = sorted(
        (str(record.run.options["dataset"]["name"]), number, right, tokens)
        for record in records
        if has_options(record.run, {"method": method})
        for number, depth, right, tokens in zip(
            *(record.metrics[key] for key in ("clusters", "depths")),
            *(record.metrics["sums"][key] for key in ("right", "tokens")),
            strict=True,
        )
        if (depth == END) == at_end
    )
    return [right for *_, right, _ in found], [tokens for *_, tokens in found]


def at_end(judged: Judged) -> Interval:
    """Return the difference that a claim about answers is about, where the answer lies at the end of the text: of too
    few texts for an interval."""
    method, than = _names(judged.check)
    return ratio_difference(
        *answers_of(judged.records, method, at_end=True), *answers_of(judged.records, than, at_end=True)
    )


def _as_many_bytes(records: Sequence[Record], method: str, than: str) -> None:
    held = [_held(records, name) for name in (method, than)]
    if max(held) > (1 + EQUAL) * min(held):
        raise UserError(f"{method} and {than} hold {held[0]:,.0f} and {held[1]:,.0f} vectors: not as many")


def _held(records: Sequence[Record], method: str) -> float:
    own = [record.metrics["usage"] for record in records if has_options(record.run, {"method": method})]
    return float(sum(usage["vectors_stored"] for usage in own) / sum(usage["windows"] for usage in own))


@dataclass(frozen=True)
class Told:
    """A claim, what the records say of each budget, and p of each after Holm over all differences of a page."""

    claim: Claim
    judged: Sequence[Judged]
    p: Sequence[float | None]
    """None where a difference could not be computed."""

    @property
    def verdict(self) -> str:
        """`holds` where every difference lies on the side that is claimed with its interval, enough documents would
        find it again (80 % power), and p stays below .05 after Holm; `does not hold` where that is so of one on the
        other side."""
        words = {
            each.verdict.word if p is None or p < SIGNIFICANT else "undecided"
            for each, p in zip(self.judged, self.p, strict=True)
        }
        if "no record" in words:
            return "no record"
        if "not reproduced" in words:
            return "does not hold"
        return "holds" if words == {"reproduced"} else "undecided"


def told(records: Sequence[Record], claims: Sequence[Claim]) -> list[Told]:
    """Judge all claims of a page together, from records of one text."""
    every = [[_judged(check, records, claim) for check in claim.checks] for claim in claims]
    p = holm({_key(each): _p(each) for judged in every for each in judged if each.found is not None})
    return [
        Told(claim, judged, [p.get(_key(each)) for each in judged]) for claim, judged in zip(claims, every, strict=True)
    ]


def _judged(check: Check, records: Sequence[Record], claim: Claim) -> Judged:
    wanted = {"model": claim.options["model"], "protocol": ASKED[claim.preset or ONLINE].get("protocol", "online")}
    own = [r for r in records if r.run.options["method"]["name"] in _names(check) and has_options(r.run, wanted)]
    if not own:
        return Judged(check, Verdict("no record"), None, reason="no record ships")
    stored = by_identity(own)
    return judge(check, [record.run for record in stored.values()], stored)


def _names(check: Check) -> tuple[str, str]:
    assert isinstance(check.measure, partial)
    return check.measure.keywords["method"], check.measure.keywords["than"]


def _key(judged: Judged) -> str:
    return canonical([judged.check.what, judged.check.rows])


def _p(judged: Judged) -> float:
    method, than = _names(judged.check)
    assert isinstance(judged.check.measure, partial)
    of = answers_of if judged.check.measure.func is more_right else clusters_of
    return ratio_difference_p(*of(judged.records, method), *of(judged.records, than))
