"""MesaNet against its regression solved token by token, and what exact least squares is for."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import normalize, silu, softplus

from assay.mixers import mixers
from assay.nn.least_squares import ridge_scan, solve
from assay.nn.random import initialised_from, stream
from assay.nn.scan import outer_loop, outer_scan

GOLDEN = Path(__file__).parent.parent / "golden" / "fla_naive.safetensors"


def drawn(*shape: int, name: str = "one") -> Tensor:
    return torch.randn(shape, generator=stream(0, "mesa", name), dtype=torch.float64)


def through(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, ridge: Tensor) -> Tensor:
    solved = ridge_scan(q, k, beta, log_decay, ridge)
    return outer_scan(solved, beta[..., None] * k, v, log_decay)[0]


def test_the_recurrence_is_the_peers_exact_form() -> None:
    golden = load_file(GOLDEN)
    q, k, v, log_decay, ridge = (golden[name] for name in ("q", "k", "v_square", "log_decay_head", "ridge"))
    beta = torch.sigmoid(golden["beta"])
    torch.testing.assert_close(through(q, k, v, beta, log_decay, ridge), golden["mesa"], rtol=1e-5, atol=1e-5)
    _, gram = outer_loop(q, beta[..., None] * k, k, log_decay)
    torch.testing.assert_close(gram, golden["mesa_gram"], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_whole_layer_is_a_weighted_ridge_regression_at_every_token() -> None:
    with initialised_from(0, "mesa"):
        module = mixers.parse("mesa:num_heads=2").build(8, 20).double().eval()
    x = drawn(20, 8)
    weight = module.convolution.weight
    projected = torch.cat([torch.zeros(3, 16, dtype=torch.float64), x @ module.queries_and_keys.weight.T])
    convolved = torch.stack([(projected[t : t + 4] * weight.T).sum(0) for t in range(20)])
    q, k = silu(convolved).reshape(20, 2, 2, 4).unbind(1)
    v = (x @ module.values.weight.T).reshape(20, 2, 4)
    decay, strength = torch.sigmoid(module.gates(x)).reshape(20, 2, 2).unbind(1)
    q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    ridge = 0.25 + softplus(module.ridge)
    heads = torch.zeros(20, 2, 4, dtype=torch.float64)
    for t in range(20):
        for h in range(2):
            # Rows weighted by what is left of them, and the ridge as rows of their own, for a plain least squares.
            weights = [strength[s, h] * decay[s + 1 : t + 1, h].prod() for s in range(t + 1)]
            rows = torch.stack([w.sqrt() * k[s, h] for s, w in enumerate(weights)])
            wanted = torch.stack([w.sqrt() * v[s, h] for s, w in enumerate(weights)])
            rows = torch.cat([rows, torch.diag(ridge[h].sqrt())])
            wanted = torch.cat([wanted, torch.zeros(4, 4, dtype=torch.float64)])
            heads[t, h] = torch.from_numpy(np.linalg.lstsq(rows.numpy(), wanted.numpy())[0]).T @ q[t, h]
    normed = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + 1e-5) * module.norm.weight
    wanted = normed.flatten(1) @ module.out.weight.T
    torch.testing.assert_close(module(x[None])[0], wanted, rtol=1e-8, atol=1e-8)


def test_gradients_are_those_of_the_solution() -> None:
    gram, ridge, q = drawn(1, 2, 3, 5, 5), drawn(2, 5, name="ridge").exp(), drawn(1, 2, 3, 5, name="q")
    gram = gram @ gram.mT

    def plain(gram: Tensor, ridge: Tensor, q: Tensor) -> Tensor:
        return torch.linalg.solve(gram + torch.diag_embed(ridge)[None, :, None], q)

    def gradients(run) -> tuple[Tensor, ...]:
        leaves = [x.clone().requires_grad_() for x in (gram, ridge, q)]
        found = run(*leaves)
        return found, *torch.autograd.grad((found * drawn(*found.shape, name="weights")).sum(), leaves)

    for found, wanted in zip(gradients(solve), gradients(plain), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_it_recalls_keys_that_overlap_where_adding_up_and_the_delta_rule_cannot() -> None:
    """8 keys in 8 channels, far from orthogonal: least squares finds the map that fits them all."""
    from assay.nn.scan import delta_loop

    k = normalize(drawn(1, 1, 8, 8) + 1.0, dim=-1)
    v, ones = drawn(1, 1, 8, 8, name="values"), torch.ones(1, 1, 8, dtype=torch.float64)
    again, nothing = torch.cat([k, k], dim=2), torch.zeros(1, 1, 8, dtype=torch.float64)
    written = torch.cat([ones, nothing], dim=2)
    values, still = torch.cat([v, 0 * v], dim=2), torch.zeros(1, 1, 16, dtype=torch.float64)
    exact = through(again, again, values, written, still, torch.full((1, 8), 1e-9, dtype=torch.float64))[:, :, 8:]
    torch.testing.assert_close(exact, v, rtol=1e-4, atol=1e-4)
    for other in (
        outer_scan(again, written[..., None] * again, values, still),
        delta_loop(again, again, values, written),
    ):
        assert (other[0][:, :, 8:] - v).abs().max() > 0.5
