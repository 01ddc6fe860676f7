"""Every scored token counts once, and the same ones at every context length."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.text import Corpus
from assay.models.causal_lm import load_tokenizer
from assay.studies.perplexity.windows import (
    COPIED,
    RareBigrams,
    Span,
    bos_of,
    copy_spans,
    spans_of,
    whole_words,
    windows_of,
)


class Letters:
    """A tokenizer of characters."""

    is_fast, bos_token_id, eos_token_id = True, 0, None

    def __call__(self, text, **_):
        return {"input_ids": [ord(c) for c in text], "offset_mapping": [(i, i + 1) for i in range(len(text))]}


documents = st.lists(st.text("abcdé ", max_size=60), min_size=1, max_size=30)


@settings(max_examples=60)
@given(documents, st.sampled_from([4, 8, 12]), st.sampled_from([None, 3]), st.integers(0, 2), st.data())
def test_each_token_of_a_span_is_a_target_once_at_every_context(texts, longest, most, windows, data):
    corpus = Corpus("texts", tuple(texts))
    if all(len(text) < longest for text in texts):
        return
    spans = spans_of(corpus, Letters(), longest=longest, max_samples=most, max_windows=windows)
    expected = []
    for text in texts:
        length = min(len(text) // longest, windows or 99) * longest
        expected += [text[:length]] if length else []
    expected = expected[:most]
    for context in (longest, data.draw(st.integers(2, longest))):
        targets = "".join(
            "".join(map(chr, w.targets[w.scored].tolist())) for w in windows_of(spans.found, context=context, bos=0)
        )
        assert targets == "".join(expected)
    assert sum(span.chars for span in spans.found) == len("".join(expected))
    assert sum(span.bytes for span in spans.found) == len("".join(expected).encode())


def test_a_window_begins_with_bos_and_holds_what_comes_before_its_targets():
    span = Span(0, torch.arange(1, 9), 8, 8, 1)
    windows = list(windows_of([span], context=4, bos=99))
    assert [w.inputs.tolist() for w in windows] == [[99, 1, 2, 3], [99, 5, 6, 7]]
    assert [w.targets.tolist() for w in windows] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    late = list(windows_of([span], context=4, bos=99, skip=2))
    assert [w.scored.tolist() for w in late] == [[False, False, True, True]] * 2


def test_few_long_documents_are_cut_into_blocks():
    spans = spans_of(Corpus("book", ("x" * 10_000,)), Letters(), longest=512)
    assert [len(span.tokens) for span in spans.found] == [2048] * 4 + [9728 - 4 * 2048]
    assert sum(span.chars for span in spans.found) == 9728 and spans.documents == 1


def test_recall_hits_are_repeated_bigrams_that_are_rare_elsewhere():
    tokens = [torch.tensor([1, 2, 7, 8, 1, 2, 7, 8])] + [torch.tensor([1, 2, 9 + i, 30 + i]) for i in range(40)]
    rare = RareBigrams([Span(i, t, 0, 0, 0) for i, t in enumerate(tokens)])
    # 1 2 is everywhere; 2 7 and 7 8 come back and are nowhere else; 8 1 comes once.
    assert rare.repeated(tokens[0]).tolist() == [False] * 6 + [True, True]


def test_the_copy_probe_repeats_random_words_at_its_distance(tiny):
    tokenizer = load_tokenizer(str(tiny))
    spans = copy_spans(tokenizer, context=100, seed=0).found
    assert {span.distance for span in spans} == {16, 32, 64, 68} and bos_of(tokenizer) == 0
    for span in spans:
        start = 100 - 2 * COPIED - span.distance
        assert torch.equal(span.tokens[start : start + COPIED], span.tokens[-COPIED:])
        assert span.scored.nonzero().flatten().tolist() == list(range(100 - COPIED + 1, 100))
    assert set(whole_words(tokenizer)) >= {token for span in spans for token in span.tokens.tolist()}
    assert not torch.equal(spans[0].tokens, copy_spans(tokenizer, context=100, seed=1).found[0].tokens)
