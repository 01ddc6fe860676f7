"""The eight families of Boolean functions: rules, balance, and what the oracle knows."""

from itertools import combinations, product

import pytest
import torch

from assay.core.errors import UserError
from assay.nn.random import stream
from assay.tasks.base import Batch
from assay.tasks.boolean import Boolean, majority
from assay.tasks.pairs import separate

KINDS = ("dnf3", "cnf3", "int_halfspace", "sparse_threshold", "parity", "sparse_parity", "disjunction", "conjunction")
UNBIASED = ("int_halfspace", "sparse_threshold", "parity", "sparse_parity")


def draw(kind, batch=1024, **options):
    task = Boolean(boolean_type=kind, **options)
    return task, task.sample(batch, stream(0, "test"))


@pytest.mark.parametrize("kind", KINDS)
def test_x_are_signs_targets_are_bits_and_the_sequence_shows_them_as_signs(kind):
    _, batch = draw(kind)
    x, y = separate(batch)
    assert set(x.unique().tolist()) == set(y.unique().tolist()) == {-1.0, 1.0}
    assert torch.equal(batch.targets, (y + 1) / 2)
    assert not batch.inputs[:, 1::2, 1:].any()
    assert batch.positions[0].tolist() == list(range(0, 80, 2))


@pytest.mark.parametrize(
    ("kind", "share", "constant"),
    [
        ("conjunction", 0.385, 0.01),
        ("disjunction", 0.615, 0.01),
        ("dnf3", 0.55, 0.01),
        ("cnf3", 0.45, 0.01),
        ("int_halfspace", 0.48, 0.01),
        ("sparse_threshold", 0.5, 0.03),
        ("parity", 0.5, 0.01),
        ("sparse_parity", 0.5, 0.01),
    ],
)
def test_labels_are_balanced_and_hardly_ever_constant(kind, share, constant):
    _, batch = draw(kind, 4096)
    assert batch.targets.mean().item() == pytest.approx(share, abs=0.03)
    mean = batch.targets.mean(1)
    assert ((mean == 0) | (mean == 1)).double().mean().item() <= constant


@pytest.mark.parametrize("kind", UNBIASED)
def test_x_are_uniform_where_no_clause_needs_balance(kind):
    x, _ = separate(draw(kind, 4096)[1])
    assert x.mean((0, 1)).abs().max().item() < 0.015
    assert (torch.einsum("bni,bnj->ij", x, x) / (4096 * 40) - torch.eye(20)).abs().max().item() < 0.015


def clauses(x, holds, d):
    """All clauses, as dictionaries from coordinates to signs, that hold exactly where they should."""
    for signs in product((-1, 0, 1), repeat=d):
        literals = {i: s for i, s in enumerate(signs) if s}
        if literals and [all(row[i] == s for i, s in literals.items()) for row in x] == holds:
            yield literals


@pytest.mark.parametrize("kind", ["conjunction", "disjunction"])
def test_one_clause_explains_a_sequence(kind):
    _, batch = draw(kind, 12, input_dim=4)
    x, _ = separate(batch)
    for rows, labels in zip(x.tolist(), batch.targets.tolist(), strict=True):
        # A disjunction is false where the opposite literals all hold.
        holds = [bool(label) == (kind == "conjunction") for label in labels]
        assert next(clauses(rows, holds, 4), None)


@pytest.mark.parametrize("kind", ["dnf3", "cnf3"])
def test_three_clauses_explain_a_sequence(kind):
    _, batch = draw(kind, 6, input_dim=3)
    x, _ = separate(batch)
    every = [{i: s for i, s in enumerate(signs) if s} for signs in product((-1, 0, 1), repeat=3) if any(signs)]
    for rows, labels in zip(x.tolist(), batch.targets.tolist(), strict=True):
        target = tuple(bool(label) == (kind == "dnf3") for label in labels)
        tables = {tuple(all(row[i] == s for i, s in clause.items()) for row in rows) for clause in every}
        unions = {
            tuple(map(any, zip(*three, strict=True))) for n in (1, 2, 3) for three in combinations(sorted(tables), n)
        }
        assert target in unions


@pytest.mark.parametrize(("kind", "largest"), [("int_halfspace", 3), ("sparse_threshold", 1)])
def test_one_halfspace_explains_a_sequence(kind, largest):
    _, batch = draw(kind, 8, input_dim=3)
    x, _ = separate(batch)
    w = torch.tensor(list(product(range(-largest, largest + 1), repeat=3))).float()
    thresholds = [0.5] if largest == 3 else [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]
    for rows, labels in zip(x, batch.targets, strict=True):
        tables = torch.cat([(w @ rows.T > t).float() for t in thresholds])
        assert (tables == labels).all(1).any()


@pytest.mark.parametrize(("kind", "sizes"), [("parity", range(5)), ("sparse_parity", [2])])
def test_the_product_over_one_subset_explains_a_sequence(kind, sizes):
    _, batch = draw(kind, 64, input_dim=4)
    x, y = separate(batch)
    subsets = [subset for size in sizes for subset in combinations(range(4), size)]
    tables = torch.stack([x[:, :, list(subset)].prod(-1) for subset in subsets], dim=1)
    fits = (tables == y[:, None]).all(-1)
    assert fits.any(1).all()
    # Forty pairs leave one of sixteen functions, and each is as likely: 64 sequences see most of them.
    assert fits.any(0).double().mean().item() > 0.8


def slow_posterior(x, y, subsets):
    """Keep the list of subsets that are still possible, one pair at a time."""
    out = []
    for rows, labels in zip(x.tolist(), y.tolist(), strict=True):
        left, answers = list(subsets), []
        for row, label in zip(rows, labels, strict=True):
            says = [torch.tensor([row[i] for i in subset]).prod().item() for subset in left]
            answers.append(says.count(1.0) / len(says))
            left = [subset for subset, s in zip(left, says, strict=True) if s == label]
        out.append(answers)
    return torch.tensor(out)


@pytest.mark.parametrize(
    ("kind", "options", "sizes"),
    [
        ("parity", {"input_dim": 5}, range(6)),
        ("sparse_parity", {"input_dim": 7}, [2]),
        ("sparse_parity", {"input_dim": 6, "k": 3}, [3]),
        ("sparse_parity", {"input_dim": 4, "k": 1}, [1]),
    ],
)
def test_the_oracle_of_parities_is_the_share_of_what_is_left(kind, options, sizes):
    task, batch = draw(kind, 12, input_seq_len=10, **options)
    subsets = [subset for size in sizes for subset in combinations(range(task.input_dim), size)]
    torch.testing.assert_close(task.oracle(batch), slow_posterior(*separate(batch), subsets))


@pytest.mark.parametrize("kind", ["parity", "sparse_parity"])
def test_the_oracle_of_parities_reads_neither_its_own_nor_a_later_label(kind):
    task, batch = draw(kind, 16, input_dim=6, input_seq_len=12)
    before = task.oracle(batch)
    changed = batch.inputs.clone()
    changed[:, 13::2, 0] *= -1  # the labels from the seventh on: no function may be left that explains them
    after = task.oracle(Batch(changed, batch.targets, batch.positions))
    assert torch.equal(before[:, :7], after[:, :7])


def test_parity_is_a_coin_until_x_repeats_and_certain_once_d_are_independent():
    task, batch = draw("parity", 512)
    answer = task.oracle(batch)
    assert (answer[:, 0] == 0.5).double().mean().item() > 0.99
    assert (answer[:, -1] != 0.5).double().mean().item() > 0.99
    certain = answer != 0.5
    assert torch.equal(answer[certain], batch.targets[certain])


@pytest.mark.parametrize("kind", ["conjunction", "disjunction", "dnf3", "cnf3", "int_halfspace", "sparse_threshold"])
def test_elsewhere_the_oracle_is_the_function_itself(kind):
    task, batch = draw(kind, 32)
    assert torch.equal(task.oracle(batch), batch.targets)


def test_too_many_subsets_leave_the_function_itself():
    task, batch = draw("sparse_parity", 8, k=10)
    assert torch.equal(task.oracle(batch), batch.targets)


def test_majority_counts_the_labels_before():
    y = torch.tensor([[1.0, 1, -1, -1, -1, 1]])
    assert majority(y).tolist() == [[0.5, 1, 1, 1, 0.5, 0]]
    task, batch = draw("conjunction", 4)
    assert torch.equal(task.references(batch)["majority"], majority(separate(batch)[1]))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"boolean_type": "sparse_parity", "k": 21}, "k=21 .* input_dim=20. Use a k from 1 to 20"),
        ({"boolean_type": "sparse_parity", "k": 0}, "k=0"),
        ({"input_dim": 0}, "input_dim=0 must be at least 1"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, says):
    with pytest.raises(UserError, match=f"task 'boolean': .*{says}"):
        Boolean(**options)
