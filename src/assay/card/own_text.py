"""`--text FOLDER` asks the question `language` of a text of the user's: another run than the tier's, so that no
record of it ships, and the mixers beside are trained here too. The other questions stay as they are."""

from dataclasses import replace

from assay.card.protocol import LANGUAGE
from assay.card.question import Question, Tier
from assay.core.errors import UserError
from assay.data.splits import documents_of
from assay.tasks import tasks
from assay.tasks.text import Text

EPOCHS = 4
"""A model reads a text so often at most (Muennighoff et al. 2023: up to here as good as new text)."""


def with_text(tier: Tier, corpus: str) -> Tier:
    """Return the tier with `language` asked of a text file or a folder of them, whole documents held out."""
    asked = tuple(_asked(q, corpus, tier.name) if q.name == LANGUAGE.name else q for q in tier.questions)
    return replace(tier, questions=asked, text=corpus)


def _asked(question: Question, corpus: str, tier: str) -> Question:
    length = tasks.parse(question.task).shape().length
    try:
        documents = documents_of(corpus)
    except UserError as error:
        raise UserError(f"--text {corpus}: {error}") from None
    there = sum(len(document) for document in documents.train if len(document) > length)
    read = question.steps * question.batch * length
    if EPOCHS * there < read:
        raise UserError(
            f"--text {corpus}: too small, {there:,} bytes to train on in documents of more than {length}, and a model "
            f"of tier {tier} reads {read:,}: give {-(-read // EPOCHS):,} or more, to be read {EPOCHS} times at most."
        )
    task = Text(corpus=corpus, input_seq_len=length)  # refuses a split without a document as long as a window
    return replace(question, task=task.label, does=f"bits per byte of documents of {corpus} it was not trained on")
