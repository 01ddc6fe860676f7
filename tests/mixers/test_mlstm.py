"""The mLSTM against its equations without a stabiliser, and against gates that would overflow."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from assay.core.errors import UserError
from assay.mixers import mixers
from assay.mixers.mlstm import stabiliser
from assay.nn.random import initialised_from, stream


def drawn(*shape: int, name: str = "one") -> Tensor:
    return torch.randn(shape, generator=stream(0, "mlstm", name), dtype=torch.float64)


def built(d_model: int = 6, *, gates: float = 0.3, block: int = 4):
    """A layer whose gates see their inputs: published, they start at zero."""
    with initialised_from(0, "mlstm"):
        module = mixers.parse(f"mlstm:num_heads=2:qkv_block={block}").build(d_model, 200).double().eval()
        module.gates.weight.data.normal_(std=gates)
    return module


@torch.no_grad()
@pytest.mark.parametrize("block", [4, 3, 12])
def test_the_whole_layer_is_the_papers_equations_head_by_head(block: int) -> None:
    module, x, time = built(block=block), drawn(15, 6), 15
    assert module.blocks.shape == (3, 12 // block, block, block)
    u, z = (x @ module.up.weight.T).chunk(2, dim=-1)
    padded = torch.cat([torch.zeros(3, 12, dtype=torch.float64), u])
    taps, bias = module.convolution.weight.T, module.convolution.bias
    c = silu(torch.stack([(padded[t : t + 4] * taps).sum(0) + bias for t in range(time)]))
    wide = [torch.block_diag(*weight) for weight in module.blocks]
    q, k, v = c @ wide[0].T, c @ wide[1].T, u @ wide[2].T
    forget, enter = module.gates(torch.cat([q, k, v], dim=-1)).chunk(2, dim=-1)
    read = torch.zeros(time, 2, 6, dtype=torch.float64)
    for h in range(2):
        memory, n, part = torch.zeros(6, 6).double(), torch.zeros(6).double(), slice(6 * h, 6 * h + 6)
        for t in range(time):
            f, i, key = torch.sigmoid(forget[t, h]), torch.exp(enter[t, h]), k[t, part] / 6**0.5
            memory, n = f * memory + i * torch.outer(key, v[t, part]), f * n + i * key
            read[t, h] = memory.T @ q[t, part] / torch.clamp((n @ q[t, part]).abs(), min=1.0)
    centred = read - read.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * module.norm[:, 0]
    wanted = ((normed.flatten(1) + module.skip * c) * silu(z)) @ module.out.weight.T
    torch.testing.assert_close(module(x[None])[0], wanted, rtol=1e-5, atol=1e-5)  # 1e-6 in the denominator


def test_the_stabiliser_is_its_recurrence() -> None:
    log_f, log_i = -drawn(2, 3, 50).abs(), 5 * drawn(2, 3, 50, name="i")
    m, wanted = torch.zeros(2, 3, dtype=torch.float64), []
    for t in range(50):
        m = torch.maximum(m + log_f[..., t], log_i[..., t])
        wanted.append(m)
    torch.testing.assert_close(stabiliser(log_f, log_i), torch.stack(wanted, dim=-1))


@pytest.mark.parametrize("gates", [30.0, 1000.0])
def test_gates_that_would_overflow_give_finite_outputs_and_gradients_and_the_steps_agree(gates: float) -> None:
    module = built(gates=gates).float()
    x = drawn(2, 150, 6, name="long").float().requires_grad_()
    y = module(x)
    state, outputs = module.init_state(2), []
    for token in x.unbind(1):
        out, state = module.step(token, state)
        outputs.append(out)
    torch.testing.assert_close(torch.stack(outputs, dim=1), y, rtol=1e-3, atol=1e-3)
    y.square().sum().backward()
    assert torch.isfinite(y).all() and torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())


def test_a_width_that_blocks_of_four_do_not_divide_has_smaller_blocks() -> None:
    assert mixers.parse("mlstm:num_heads=2").build(7, 8).blocks.shape[-1] == 2
    assert mixers.parse("mlstm:num_heads=2").build(8, 8).blocks.shape[-1] == 4
    mixers.parse("mlstm:num_heads=1").check_width(7)


def test_blocks_of_another_size_that_do_not_divide_the_channels_are_refused_with_those_that_do() -> None:
    with pytest.raises(UserError, match=r"blocks of 5 .* 16 channels .* qkv_block may be 1, 2, 4, 8, 16\.$"):
        mixers.parse("mlstm:num_heads=2:qkv_block=5").check_width(8)
    mixers.parse("mlstm:num_heads=2:qkv_block=8").check_width(8)
