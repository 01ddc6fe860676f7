import dataclasses

import pytest
import torch
from torch import nn

from assay.core.errors import UserError
from assay.metrics.probes import Split, ridge_r2
from assay.nn.random import stream
from assay.train import head
from assay.train.head import batch_order, head_r2, train_heads

SMALL = {"hidden": 10, "steps": 60, "batch": 32, "lr": 3e-3}


def make(models=3, *, n=150, d=7, r=3, seed=0, dtype=torch.float32):
    """Codes whose columns differ in scale, with a dead one; targets a kinked function of them."""
    rng = torch.Generator().manual_seed(seed)
    codes = torch.randn(models, n, d, generator=rng, dtype=dtype) * torch.linspace(1, 9, d, dtype=dtype) + 2
    codes[..., 2] = 0
    targets = (codes @ torch.randn(d, r, generator=rng, dtype=dtype)).abs()
    return codes, targets / targets.std()


def plain(codes, targets, seed, *, hidden, steps, batch, lr):
    """One head, as anyone would write it; only its first weights are taken from an untrained bank."""
    first = train_heads(codes[None], targets[None], hidden=hidden, steps=0, seeds=[seed], batch=batch).weights
    deviation = codes.std(0, correction=0)
    codes = (codes - codes.mean(0)) / torch.where(deviation > 0, deviation, torch.inf)
    net = nn.Sequential(nn.Linear(codes.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, targets.shape[1])).to(codes)
    with torch.no_grad():
        net[0].weight.copy_(first.first[0, :-1].T)
        net[0].bias.copy_(first.first[0, -1])
        net[2].weight.copy_(first.second[0])
        net[2].bias.copy_(first.bias[0, 0])
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    for rows in batch_order(len(codes), batch, steps, stream(seed, "head", "order")):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(codes[rows]), targets[rows]).backward()
        optimizer.step()
    return net(codes).detach()


def test_bank_equals_the_plain_loop_in_float64():
    codes, targets = make(dtype=torch.float64)
    seeds = [11, 5, 3]
    found = train_heads(codes, targets, seeds=seeds, **SMALL).predict(codes)
    slow = torch.stack([plain(codes[k], targets[k], seeds[k], **SMALL) for k in range(3)])
    untrained = train_heads(codes, targets, seeds=seeds, **SMALL | {"steps": 0}).predict(codes)
    assert (found - untrained).abs().max() > 0.1, "sixty steps must move the prediction"
    torch.testing.assert_close(found, slow, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", [{"d": 7, "r": 3}, {"d": 32, "r": 4}, {"d": 5, "r": 1}, {"d": 16, "r": 9}])
@pytest.mark.parametrize("subset", [[0], [4], [1, 3], [0, 2, 5, 6]])
def test_any_subset_gives_the_same_bits_as_the_full_bank(shape, subset):
    codes, targets = make(7, **shape)
    full = train_heads(codes, targets, seeds=range(7), **SMALL)
    part = train_heads(codes[subset], targets[subset], seeds=subset, **SMALL)
    assert torch.equal(full.weights.packed[subset], part.weights.packed)
    assert torch.equal(full.predict(codes)[subset], part.predict(codes[subset]))


@pytest.mark.parametrize("fault", ["codes", "targets"])
def test_a_diverged_model_harms_no_other(fault):
    codes, targets = make(4)
    clean = train_heads(codes, targets, seeds=range(4), **SMALL).predict(codes)
    (codes if fault == "codes" else targets)[2] = torch.nan
    found = train_heads(codes, targets, seeds=range(4), **SMALL).predict(codes)
    assert found[2].isnan().all()
    assert torch.equal(found[[0, 1, 3]], clean[[0, 1, 3]])


def test_shared_targets_are_each_models_targets():
    codes, targets = make(2)
    shared = train_heads(codes, targets[0], seeds=[1, 2], **SMALL).predict(codes)
    repeated = train_heads(codes, targets[[0, 0]], seeds=[1, 2], **SMALL).predict(codes)
    assert torch.equal(shared, repeated)


def test_a_seed_decides_the_head():
    codes, targets = make(1)
    twins = train_heads(codes[[0, 0, 0]], targets[0], seeds=[1, 1, 2], **SMALL).predict(codes[[0, 0, 0]])
    assert torch.equal(twins[0], twins[1]) and not torch.equal(twins[0], twins[2])


def test_first_weights_are_spread_as_in_nn_linear():
    weights = train_heads(*make(1, d=50, r=40), hidden=400, steps=0, seeds=[0], batch=32).weights
    for part, fan_in in (
        (weights.first[0, :-1], 50),
        (weights.first[0, -1], 50),
        (weights.second, 400),
        (weights.bias, 400),
    ):
        bound = fan_in**-0.5
        assert 0.8 * bound < part.abs().max() <= bound
        assert part.std().item() == pytest.approx(bound / 3**0.5, rel=0.15)


def test_every_epoch_is_a_fresh_permutation_without_its_odd_rows():
    order = batch_order(10, 3, 8, torch.Generator().manual_seed(0))
    assert order.shape == (8, 3)
    epochs = [order[start : start + 3].flatten().tolist() for start in (0, 3)]
    assert all(len(set(epoch)) == 9 for epoch in epochs) and epochs[0] != epochs[1]


def test_too_few_codes_for_a_batch_are_refused():
    with pytest.raises(UserError, match="do not fill a batch"):
        train_heads(*make(1, n=20), hidden=4, steps=1, seeds=[0], batch=32)


def split_of(codes, targets):
    half = codes.shape[1] // 2
    return Split(codes[0, :half], targets[0, :half], codes[0, half:], targets[0, half:])


def test_the_score_does_not_see_a_gain_of_the_code():
    split = split_of(*make(1, n=1000))
    scaled = dataclasses.replace(split, z_fit=split.z_fit * 1024, z_test=split.z_test * 1024)
    assert head_r2(scaled, seed=0, **SMALL) == head_r2(split, seed=0, **SMALL)


def test_a_head_reads_what_no_line_can():
    rng = torch.Generator().manual_seed(0)
    codes = torch.randn(1, 4000, 4, generator=rng)
    split = split_of(codes, codes.abs())
    assert ridge_r2(split) < 0.02
    assert head_r2(split, hidden=64, steps=600, batch=64, lr=3e-3, seed=0) > 0.9


def test_a_noise_code_teaches_the_head_nothing():
    rng = torch.Generator().manual_seed(0)
    split = split_of(torch.randn(1, 8000, 8, generator=rng), torch.randn(1, 8000, 2, generator=rng))
    assert -0.1 < head_r2(split, hidden=16, steps=200, seed=0) < 0.01


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_cpus_heads_without_waiting_for_the_host(monkeypatch):
    codes, targets = make(3, dtype=torch.float64)
    cpu = train_heads(codes, targets, seeds=range(3), **SMALL).predict(codes)
    descend = head._descend

    def watched(*args, **options):
        torch.cuda.set_sync_debug_mode("error")
        try:
            descend(*args, **options)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(head, "_descend", watched)
    codes, targets = codes.cuda(), targets.cuda()
    torch.testing.assert_close(train_heads(codes, targets, seeds=range(3), **SMALL).predict(codes).cpu(), cpu)
