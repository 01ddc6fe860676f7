"""Learn the merges of assay.data.vocabulary from every fourth training document of `library2`, once: writes
vocabulary.txt.

python tools/train_vocabulary.py TRAIN.jsonl      (needs tokenizers, which comes with assay-bench[lm])
"""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from assay.data import vocabulary


def bytes_of_letters() -> dict[str, int]:
    """Undo what `tokenizers` writes bytes as: printable ones as themselves, others as letters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def splitter() -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(vocabulary.PATTERN), behavior="isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def learned(texts: Iterator[str], size: int = vocabulary.SIZE) -> list[tuple[int, int]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter()
    letters = bytes_of_letters()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size - 1, initial_alphabet=list(letters)))
    ids = dict(letters)
    merges = []
    for left, right in json.loads(tokenizer.to_str())["model"]["merges"]:
        if left + right not in ids:  # a token that is spelled like an earlier one is that one
            merges.append((ids[left], ids[right]))
            ids[left + right] = 255 + len(merges)
    return merges


if __name__ == "__main__":
    with Path(sys.argv[1]).open() as lines:
        vocabulary.write(learned(json.loads(line)["text"] for line in islice(lines, 0, None, 4)))
    print(vocabulary.FILE, vocabulary.shipped().sha256)
