"""How much a mixer holds: of a question about recall at several sizes, the pairs it still recalls and their bits.

capacity (recall): learned 4 pairs with 5 of 5 seeds; 90 % right up to 57 [41, 80] pairs; 412 ±30 bits, 0.19 per byte
"""

from assay.card.battery import Answer
from assay.metrics.intervals import Interval, student_t
from assay.studies.icl.k90 import capacity_interval
from assay.studies.icl.learning import bits_of, curve, has_learned
from assay.studies.icl.report import BYTES


def bits(answer: Answer) -> Interval | None:
    """The bits that say which value belongs to which key, at the size where they are most; of the seeds that learned
    the smallest size, None without one."""
    found = [bits_of(run, beyond=True) for run in answer.by_sizes if has_learned(run)]
    return student_t(found) if found else None


def per_byte(answer: Answer) -> float | None:
    """Those bits over the bytes of state."""
    held, state = bits(answer), BYTES * answer.sizes.get("state_scalars", 0)
    return held.mean / state if held and state else None


def told(answer: Answer, *field: Answer, final: bool) -> str:
    """Say it in a line, with the field's bits per byte beside it, and whether its training was enough to be `final`;
    nothing of other questions."""
    if not answer.by_sizes:
        return ""
    sizes = sorted(map(int, answer.by_sizes[0].metrics["by_size"]))
    learned = [curve(run) for run in answer.by_sizes if has_learned(run)]
    name = answer.question.name if final else f"{answer.question.name}, not converged: after this training"
    said = f"capacity ({name}): learned {sizes[0]} pairs with {len(learned)} of {len(answer.by_sizes)} seeds"
    held, share = bits(answer), per_byte(answer)
    if held is None or share is None:
        return said
    half = f" ±{(held.high - held.low) / 2:.0f}" if held.high is not None and held.low is not None else ""
    theirs = [found for each in field if (found := per_byte(each)) is not None]
    among = f" (the field's {min(theirs):.2g} to {max(theirs):.2g})" if theirs else ""
    pairs = f"90 % right up to {capacity_interval(sizes, learned)} pairs"
    return f"{said}; {pairs}; {held.mean:.0f}{half} bits, {share:.2g} per byte of state{among}"
