"""The Triton kernels of banks against torch in float64. They need a GPU; what they stand for is tested everywhere in
tests/train/test_bank.py."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from assay.nn.norm import Norm
from assay.nn.random import stream
from assay.nn.whole import has_kernels
from assay.tasks import tasks

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and has_kernels(torch.device("cuda"))), reason="needs CUDA and Triton"
)
NARROW, WIDE = {"rtol": 2**-6, "atol": 4e-6}, {"rtol": 1e-4, "atol": 4e-6}
"""Near certainty 1 - p is what is left of a sum of logits around 12, each good to 1e-6."""


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("outputs", [7, 4096, 8192, 10_001])
@pytest.mark.parametrize("certainty", [0.0, 12.0])
def test_cross_entropy(dtype: torch.dtype, outputs: int, certainty: float) -> None:
    from assay.nn.kernels import cross_entropy

    targets = torch.randint(outputs, (3, 5), device="cuda")
    sure = torch.full((3, 5, 1), certainty, device="cuda")
    logits = draw(3, 5, outputs).scatter_add(-1, targets[..., None], sure).to(dtype).requires_grad_()
    exact = logits.detach().double().requires_grad_()
    losses, wanted = cross_entropy(logits, targets), -exact.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(losses.double(), wanted, rtol=1e-4, atol=2e-6)
    (gradient,) = torch.autograd.grad((losses * draw(3, 5)).sum(), logits)
    (wanted_gradient,) = torch.autograd.grad((wanted * draw(3, 5).double()).sum(), exact)
    torch.testing.assert_close(gradient.double(), wanted_gradient, **(NARROW if dtype == torch.bfloat16 else WIDE))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 4, 5, 16), (2, 300, 128), (1, 1, 96), (5, 70, 1000)])
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    from assay.nn.kernels import rms_norm as ours

    x, gains = draw(*shape).to(dtype).requires_grad_(), draw(shape[0], shape[-1], seed=1).to(dtype).requires_grad_()
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, gains)]
    pull = draw(*shape, seed=2).to(dtype)
    found = ours(x, gains, 1e-6)
    wanted = torch.stack([rms_norm(a, a.shape[-1:], b, 1e-6) for a, b in zip(*exact, strict=True)])
    close = {"rtol": 2**-6, "atol": 2**-5} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(found.double(), wanted, **close)
    gradients = torch.autograd.grad((found * pull).sum(), (x, gains))
    for gradient, right in zip(gradients, torch.autograd.grad((wanted * pull.double()).sum(), exact), strict=True):
        torch.testing.assert_close(gradient.double(), right, **close)


def test_a_norm_takes_the_kernel_where_a_gradient_is_asked_for() -> None:
    norm = Norm(96).cuda()
    x = draw(4, 77, 96).bfloat16()
    trained = norm(x.clone().requires_grad_())
    assert "RmsNorm" in repr(trained.grad_fn.next_functions)  # type: ignore[union-attr]
    torch.testing.assert_close(trained, norm(x), rtol=2**-6, atol=2**-6)
    (gradient,) = torch.autograd.grad((trained * draw(4, 77, 96, seed=2)).sum(), norm.weight)
    unit = x.double() / x.double().square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(gradient.double(), (unit * draw(4, 77, 96, seed=2)).sum((0, 1)), rtol=2**-5, atol=0.1)


@pytest.mark.parametrize("pairs", [4, 64, 256])
def test_sequences_drawn_together_are_those_drawn_alone(pairs: int) -> None:
    """Also where two numbers that they are ordered by are equal, which topk resolves by the number of rows."""
    task = tasks.parse(f"mqar:num_kv_pairs={pairs}:input_seq_len={4 * pairs}:power_a=1:filler=no_keys:values=hidden")
    rngs, alone = ([stream(seed, "test", device="cuda") for seed in range(15)] for _ in range(2))
    batch = task.sample_together(64, rngs)
    for place, rng in enumerate(alone):
        own = task.sample(64, rng)
        for name in ("inputs", "targets", "positions"):
            assert torch.equal(getattr(own, name), getattr(batch, name)[place])
