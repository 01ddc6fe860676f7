"""The law of multi-query associative recall: pairs, slots, filler, pools and mixed sizes."""

import re
from dataclasses import dataclass, replace

import pytest
import torch

from assay.api import configure
from assay.core.errors import UserError
from assay.nn.random import stream
from assay.studies.icl.icl import InContext
from assay.tasks.base import Batch
from assay.tasks.mqar import Mqar

SMALL = Mqar(input_seq_len=16, vocab_size=24, num_kv_pairs=2)
MIXED = Mqar(input_seq_len=48, vocab_size=64, num_kv_pairs=8, min_kv_pairs=2, power_a=1.0)
REVISED = Mqar(input_seq_len=48, vocab_size=64, num_kv_pairs=4, min_kv_pairs=2, updates=1, values="hidden")
FILLERS = ("any", "no_keys", "zero")


def draw(task, batch=1024, name="test"):
    return task.sample(batch, stream(0, name))


def slow_lookup(task, batch):
    """Read the pairs into a dictionary, one sequence at a time."""
    rows, end = [], 2 * task.num_kv_pairs * (1 + task.updates)
    for tokens, positions in zip(batch.inputs.tolist(), batch.positions.tolist(), strict=True):
        pairs = dict(zip(tokens[0:end:2], tokens[1:end:2], strict=True))
        rows.append([pairs[tokens[p]] for p in positions])
    return torch.tensor(rows)


@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize(
    "task",
    [Mqar(), SMALL, MIXED, Mqar(num_kv_pairs=70, input_seq_len=280), REVISED, replace(REVISED, updates=2)],
    ids=str,
)
def test_the_oracle_looks_up_exactly(task, filler):
    task = replace(task, filler=filler)
    batch = draw(task, 128)
    assert torch.equal(task.oracle(batch), batch.targets)
    assert torch.equal(task.oracle(batch), slow_lookup(task, batch))


def test_the_worked_example_is_answered():
    task = Mqar(input_seq_len=16, vocab_size=20, num_kv_pairs=3)
    a, b, c = 1, 2, 3
    tokens = torch.tensor([[a, 14, b, 17, c, 11, 5, 6, b, 17, 7, 8, a, 14, c, 11]])
    batch = Batch(tokens, torch.zeros(1, 3, dtype=torch.long), torch.tensor([[12, 8, 14]]))
    assert task.oracle(batch).tolist() == [[14, 17, 11]], "entry j belongs to key j"
    assert task.gaps(batch).tolist() == [[12, 8 - 2, 14 - 4]]


def test_keys_and_values_are_distinct_and_come_from_their_halves():
    batch = draw(Mqar())
    keys, values = batch.inputs[:, 0:16:2], batch.inputs[:, 1:16:2]
    assert keys.min() >= 1 and keys.max() < 4096 <= values.min() and values.max() < 8192
    assert all(len(set(row)) == 8 for row in (*keys.tolist(), *values.tolist()))
    # 8192 draws from 4095 keys: their mean has a standard error of 1182 / 90 = 13.
    assert abs(keys.double().mean().item() - 2048) < 65
    assert abs(values.double().mean().item() - 6143.5) < 65
    assert torch.equal(values, batch.targets)


def test_each_key_stands_at_its_position_and_its_value_behind_it():
    batch = draw(Mqar())
    assert torch.equal(batch.inputs.gather(1, batch.positions), batch.inputs[:, 0:16:2])
    assert torch.equal(batch.inputs.gather(1, batch.positions + 1), batch.targets)
    assert (batch.positions % 2 == 0).all() and batch.positions.min() >= 16
    assert all(len(set(row)) == 8 for row in batch.positions.tolist())


@pytest.mark.parametrize("power_a", [0.01, 1.0, 2.0])
def test_the_first_two_slots_have_the_law_of_successive_draws(power_a):
    task, rows = replace(SMALL, power_a=power_a), 60_000
    slots = (draw(task, rows).positions - 4) // 2
    weight = torch.arange(1, 7).double() ** (power_a - 1)
    p = weight / weight.sum()
    joint = p[:, None] * p / (1 - p[:, None])
    joint.fill_diagonal_(0)
    seen = torch.zeros(6, 6).index_put_((slots[:, 0], slots[:, 1]), torch.ones(rows), accumulate=True) / rows
    error = (joint * (1 - joint) / rows).sqrt()
    assert ((seen - joint).abs() <= 5 * error).all()


def test_most_questions_stand_in_the_first_third_of_the_slots_by_default():
    slots = (draw(Mqar(), 4096).positions - 16) // 2
    weight = torch.arange(1, 25).double() ** -0.99
    plain = torch.multinomial(weight.expand(4096, 24), 8, generator=stream(1, "plain"))
    for found in (slots, plain):
        assert abs((found < 8).double().mean().item() - 0.595) < 0.01


def filler_of(task, batch):
    """The tokens that are neither pairs nor questions, and the rows they stand in."""
    place = torch.ones_like(batch.inputs, dtype=torch.bool)
    place[:, : 2 * task.num_kv_pairs] = False
    return place.scatter(1, batch.positions, False).scatter(1, batch.positions + 1, False)


@pytest.mark.parametrize("filler", FILLERS)
def test_filler_keeps_its_rule(filler):
    task = replace(SMALL, filler=filler)
    batch = draw(task, 20_000)
    place, keys = filler_of(task, batch), batch.inputs[:, 0:4:2]
    is_key = (batch.inputs[:, :, None] == keys[:, None]).any(-1)
    tokens = batch.inputs[place]
    if filler == "zero":
        assert not tokens.any()
        return
    share = is_key[place].double().mean().item()
    assert abs(share - (2 / 23 if filler == "any" else 0)) < 0.004
    # 160,000 draws, standard error .0005. Each sequence takes 2 of the 11 keys away from its filler.
    seen = tokens.bincount(minlength=24).double() / len(tokens)
    expected = torch.full((24,), 1 / 23).double() if filler == "any" else torch.full((24,), 1 / 21).double()
    if filler == "no_keys":
        expected[1:12] *= 9 / 11
    expected[0] = 0
    torch.testing.assert_close(seen, expected, rtol=0, atol=0.003)


def test_the_pools_of_train_and_eval_are_disjoint_halves():
    pools = {pool: replace(SMALL, vocab_size=26, key_pool=pool) for pool in ("all", "train", "eval")}
    seen = {pool: set(draw(task).inputs[:, 0:4:2].flatten().tolist()) for pool, task in pools.items()}
    assert seen == {"all": set(range(1, 13)), "train": set(range(1, 7)), "eval": set(range(7, 13))}


def test_a_mixture_has_a_part_for_every_doubling_at_its_share_of_the_length():
    assert MIXED.sizes == (2, 4, 8)
    found = [(part.num_kv_pairs, part.input_seq_len, part.min_kv_pairs) for part in MIXED.parts()]
    assert found == [(2, 12, None), (4, 24, None), (8, 48, None)]
    assert SMALL.parts() == (SMALL,)
    whole, largest = draw(MIXED), draw(MIXED.parts()[-1])
    assert torch.equal(whole.inputs, largest.inputs) and torch.equal(whole.targets, largest.targets)


def test_longer_versions_keep_the_pairs_and_may_be_longer_than_the_vocabulary():
    assert {n: (task.input_seq_len, task.num_kv_pairs) for n, task in SMALL.longer().items()} == {
        n: (n, 2) for n in (16, 32, 64, 128)
    }
    assert {task.num_kv_pairs for task in MIXED.longer().values()} == {4}
    assert list(MIXED.longer()) == [MIXED.input_seq_len * times for times in (1, 2, 4, 8)], "beyond every part of it"


@pytest.mark.parametrize("preset", ["quick", "small", "spec", "capacity"])
def test_every_preset_is_scored_at_1_2_4_and_8_times_its_length(preset):
    task = configure(InContext, preset, {}).task
    assert list(task.longer()) == [times * task.input_seq_len for times in (1, 2, 4, 8)]


@pytest.mark.parametrize("filler", FILLERS)
def test_a_sequence_longer_than_the_vocabulary_has_distinct_pairs_and_its_filler_keeps_its_rule(filler):
    """Down to the smallest vocabulary: as many keys and values as pairs."""
    task = Mqar(input_seq_len=128, vocab_size=10, num_kv_pairs=4, filler=filler)
    batch = draw(task, 512)
    keys, values = batch.inputs[:, 0:8:2], batch.inputs[:, 1:8:2]
    assert keys.sort().values.tolist() == [[1, 2, 3, 4]] * 512 and values.min() >= 5 and values.max() <= 9
    assert all(len(set(row)) == 4 for row in values.tolist()) and torch.equal(values, batch.targets)
    assert torch.equal(batch.inputs.gather(1, batch.positions), keys)
    assert torch.equal(slow_lookup(task, batch), batch.targets)
    found = set(batch.inputs[filler_of(task, batch)].tolist())
    assert found == {"any": set(range(1, 10)), "no_keys": set(range(5, 10)), "zero": {0}}[filler]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"input_seq_len": 33}, "input_seq_len=33 must be even.*Use input_seq_len=34"),
        ({"input_seq_len": 30}, "input_seq_len=30 is too short for num_kv_pairs=8.*Use input_seq_len=32 or more"),
        ({"num_kv_pairs": 0}, "num_kv_pairs=0 must be at least 1"),
        ({"vocab_size": 17}, "key_pool=all of vocab_size=17 holds 7 keys, fewer.*Use vocab_size=18 or more"),
        (
            {"num_kv_pairs": 16, "vocab_size": 65, "key_pool": "train"},
            "key_pool=train of vocab_size=65 holds 15 keys, fewer than num_kv_pairs=16.*Use vocab_size=68",
        ),
        (
            {"input_seq_len": 96, "updates": 2, "vocab_size": 46},
            "vocab_size=46 holds 23 values, fewer than num_kv_pairs=8 with updates=2 need. Use vocab_size=48",
        ),
        ({"power_a": 0.0}, "power_a=0.0 must be positive"),
        ({"min_kv_pairs": 3}, "min_kv_pairs=3 does not double up to num_kv_pairs=8. Use one of 8, 4, 2, 1"),
        ({"input_seq_len": 36, "min_kv_pairs": 2}, "input_seq_len=36 cannot shrink.*Use input_seq_len=32"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, says):
    with pytest.raises(UserError, match=f"task 'mqar': .*{says}"):
        Mqar(**options)


@pytest.mark.parametrize("updates", [0, 1, 2, 5])
@pytest.mark.parametrize("pool", ["all", "train", "eval"])
@pytest.mark.parametrize("pairs", [4, 15, 40])
def test_a_vocabulary_is_large_enough_with_a_key_for_each_question_and_a_value_for_each_pair(pairs, pool, updates):
    """A key that is written several times is one key."""
    options = {"num_kv_pairs": pairs, "updates": updates, "key_pool": pool, "input_seq_len": 2 * pairs * (2 + updates)}
    with pytest.raises(UserError) as refused:
        Mqar(vocab_size=2, **options)
    enough = int(re.search(r"Use vocab_size=(\d+) or more", str(refused.value))[1])
    assert enough == max((2 if pool == "all" else 4) * (pairs + 1), 2 * pairs * (1 + updates))
    task = Mqar(vocab_size=enough, **options)
    for batch in (draw(task, 64), *(Batch(*some) for some in zip(*together(task), strict=True))):
        keys, values = (batch.inputs[:, part : 2 * pairs * (1 + updates) : 2] for part in (0, 1))
        assert all(set(row) <= set(task.keys) and len(set(row)) == pairs for row in keys.tolist())
        assert all(min(row) >= enough // 2 and len({*row}) == pairs * (1 + updates) for row in values.tolist())
        assert torch.equal(task.oracle(batch), batch.targets) and torch.equal(slow_lookup(task, batch), batch.targets)


def together(task):
    batch = task.sample_together(16, [stream(seed, "together") for seed in range(2)])
    return batch.inputs, batch.targets, batch.positions


@pytest.mark.parametrize("filler", FILLERS)
def test_hidden_values_leave_filler_after_every_question(filler):
    shown = replace(MIXED.only(8), filler=filler)
    hidden = replace(shown, values="hidden")
    one, other = draw(shown), draw(hidden)
    assert torch.equal(one.positions, other.positions) and torch.equal(one.targets, other.targets)
    behind = other.inputs.gather(1, other.positions + 1)
    assert torch.equal(one.inputs.gather(1, one.positions + 1), one.targets)
    assert (behind == other.targets).float().mean() < 0.1, "by chance, one filler in 63 is the value"
    kept = torch.ones_like(one.inputs, dtype=torch.bool).scatter_(1, one.positions + 1, False)
    assert torch.equal(one.inputs[kept], other.inputs[kept])
    assert torch.equal(hidden.oracle(other), other.targets)


def eliminating(task, batch):
    """Guess the first value of the context that no earlier question has shown."""
    rows = []
    for tokens, positions in zip(batch.inputs.tolist(), batch.positions.tolist(), strict=True):
        values = tokens[1 : 2 * task.num_kv_pairs : 2]
        guesses = {p: next(v for v in values if v not in tokens[2 * task.num_kv_pairs : p]) for p in positions}
        rows.append([guesses[p] for p in positions])
    return torch.tensor(rows)


@pytest.mark.parametrize("pairs", [2, 4, 8])
def test_the_floor_is_what_a_guess_among_the_values_left_scores(pairs):
    task = Mqar(input_seq_len=4 * pairs, vocab_size=64, num_kv_pairs=pairs, power_a=1.0, filler="zero")
    batch = draw(task, 4000)
    right = (eliminating(task, batch) == batch.targets).double().mean().item()
    assert task.floor() == pytest.approx(sum(1 / k for k in range(1, pairs + 1)) / pairs)
    assert right == pytest.approx(task.floor(), abs=0.02)
    hidden = replace(task, values="hidden")
    batch = draw(hidden, 4000)
    right = (eliminating(hidden, batch) == batch.targets).double().mean().item()
    assert hidden.floor() == 1 / pairs and right == pytest.approx(1 / pairs, abs=0.02)


def test_the_cells_of_zoology_are_five_to_train_on_and_seven_to_be_scored_on():
    task = Mqar(input_seq_len=1024, vocab_size=8192, num_kv_pairs=256, values="hidden", cells="zoology")
    cells = [(part.input_seq_len, part.num_kv_pairs) for part in task.scored_parts()]
    assert cells == [(64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256)]
    assert [part.num_kv_pairs for part in task.parts()] == [4, 8, 16, 32, 64]
    assert all(part.values == "hidden" and part.parts() == (part,) for part in task.scored_parts())
    assert task.longer() == {} and task.shape().length == 1024
    with pytest.raises(UserError, match="cells=zoology has sizes of its own"):
        Mqar(input_seq_len=256, num_kv_pairs=64, cells="zoology")


def test_every_key_is_given_each_of_its_values_in_one_random_order():
    batch = draw(REVISED)
    keys, values = batch.inputs[:, 0:16:2], batch.inputs[:, 1:16:2]
    assert all(sorted(row) == sorted(2 * list(set(row))) and len(set(row)) == 4 for row in keys.tolist())
    assert all(len(set(row)) == 8 for row in values.tolist())
    # The second token that is written is the first one's key in 1 of 7 orders: 1024 draws have a deviation of 11.
    assert abs(int((keys[:, 0] == keys[:, 1]).sum()) - 1024 / 7) < 50


def test_an_old_value_is_never_the_answer_and_gaps_count_from_the_newest():
    batch = draw(REVISED)
    gaps = REVISED.gaps(batch)
    for tokens, asked, answers, back in zip(
        *(each.tolist() for each in (batch.inputs, batch.positions, batch.targets, gaps)), strict=True
    ):
        for place, answer, gap in zip(asked, answers, back, strict=True):
            last = max(i for i in range(0, 16, 2) if tokens[i] == tokens[place])
            assert tokens[last + 1] == answer and place - last == gap
    assert REVISED.floor() == 1 / 4
    assert [(part.num_kv_pairs, part.input_seq_len) for part in REVISED.parts()] == [(2, 24), (4, 48)]


@dataclass(frozen=True, kw_only=True)
class OfOneKey(Mqar):
    """A task made of this one: it overrides `sample` alone."""

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        return replace(super().sample(batch, rng), targets=torch.ones(batch, self.num_kv_pairs, dtype=torch.long))


def test_a_task_made_of_it_is_drawn_together_by_its_own_sample() -> None:
    drawn = OfOneKey().sample_together(3, [stream(seed, "test") for seed in range(2)])
    assert drawn.targets.shape == (2, 3, 8) and bool((drawn.targets == 1).all())
