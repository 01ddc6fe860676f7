"""Methods keep, read and hold what they always did: a change of their numbers needs a raised version."""

import json


def test_every_older_method_keeps_the_keys_it_always_kept(script):
    made = script("tests/golden/make_attention_masks.py")
    expected, found = json.loads(made.GOLDEN.read_text(encoding="utf-8")), made.masks()
    moved = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
    assert not moved, f"{moved}: other keys. If they are meant to change: python tests/golden/make_attention_masks.py"
