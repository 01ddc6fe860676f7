"""In-context recall (MAD, Poli et al. 2024) asks for the value of every key that is shown again.

    C 7 A 4 C 7 B 4 A 4 C 7  ->  7, 4, 7      read at C, A and C, where a key returns, before its value

`tasks/repeats.py` has the law. With the published 16 tokens there are 8 keys, 8 values and 64 slots, and nearly all
slots but the first few ask. In `mqar` every pair is shown before any is asked, once each, and values are distinct; here
the same few keys return throughout, and two keys may share a value.

Floor: a uniform guess among the values is right once in 8; the reference `frequent` answers with the value shown most
often so far. Ceiling: 1, by lookup.

Differs from the paper (`multi_query`): the loss is at the answers alone, where theirs is at every next token in
training; a sequence has as many answers as keys return on average (56), the last ones, and one with fewer counts some
twice; batches are drawn anew, where they go through 12,800 sequences many times.
"""

from dataclasses import dataclass

from assay.tasks import tasks
from assay.tasks.repeats import RepeatTask


@tasks.register("in_context_recall")
@dataclass(frozen=True, kw_only=True)
class InContextRecall(RepeatTask):
    """Recall the value of every key that is shown again."""
