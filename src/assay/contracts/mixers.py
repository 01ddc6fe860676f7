"""Every mixer keeps these promises: see assay.mixers.base."""

import torch
from jaxtyping import Float
from torch import Tensor

from assay.contracts.shared import assert_close, assert_trains, training_reach
from assay.mixers.base import Mixer, MixerModule, state_scalars
from assay.nn.random import initialised_from, stream

D_MODEL, LENGTH = 32, 24


def keeps_the_shape_for_any_length(mixer: Mixer) -> None:
    """(batch, time, d_model) in and out, for every length from 1 to max_len."""
    module = _module(mixer)
    for length in (1, 2, 7, LENGTH):
        y = module(_sequences(3, length))
        assert y.shape == (3, length, D_MODEL), f"(3, {length}, {D_MODEL}) gave {tuple(y.shape)}"


def does_not_read_the_future(mixer: Mixer) -> None:
    """Changing the tokens after t leaves the outputs up to t as they were (FFT: to 1e-5), with no gradient to them."""
    module, x = _module(mixer), _sequences(3)
    for t in (1, 5, LENGTH - 1):
        changed = torch.cat([x[:, :t], _sequences(3, name="other")[:, t:]], dim=1)
        one, other = module(x)[:, :t], module(changed)[:, :t]
        same = torch.equal(one, other) or (one - other).abs().max() <= mixer.rounding
        assert same, f"outputs before {t} moved when the tokens from {t} on changed"
    reach = training_reach(module, x, lambda y: y[:, :5], least=mixer.rounding)
    assert not reach[:, 5:].any(), "in training, outputs before 5 depend on the tokens from 5 on"


def reads_the_past(mixer: Mixer) -> None:
    """The last output depends on the first token (within reach of a window or a convolution, on the one before)."""
    module, x = _module(mixer), _sequences(3, 2)
    changed = torch.cat([_sequences(3, 2, name="other")[:, :1], x[:, 1:]], dim=1)
    assert not torch.equal(module(x)[:, 1], module(changed)[:, 1]), (
        "the second output does not depend on the first token"
    )


def steps_as_it_runs_in_parallel(mixer: Mixer) -> None:
    """Token by token with the state gives what the parallel form gives, within 1e-5."""
    module, x = _module(mixer), _sequences(3)
    stepped, _ = _stepped(module, x)
    assert_close(module(x), stepped, 1e-5, "the two forms")


def carries_the_state_it_declares(mixer: Mixer) -> None:
    """`state_size` is the number of scalars really in the state, after 1 token and after many."""
    module, x = _module(mixer), _sequences(2)
    for length in (1, LENGTH):
        _, state = _stepped(module, x[:, :length])
        real, declared = state_scalars(state), mixer.state_size(D_MODEL, length)
        assert real == declared, f"after {length} tokens the state holds {real} scalars, state_size says {declared}"


def trains_every_parameter(mixer: Mixer) -> None:
    """Each parameter gets a finite gradient that is not zero."""
    module = _module(mixer).train()
    assert_trains(module, module(_sequences(16)))


def works_in_float64_and_under_bf16_autocast(mixer: Mixer) -> None:
    """float64 agrees with float32 to 1e-4; bf16 autocast gives finite numbers near them."""
    module, x = _module(mixer), _sequences(3)
    single = module(x)
    with torch.autocast("cpu", torch.bfloat16):
        half = module(x).float()
    assert torch.isfinite(half).all(), "bf16 autocast gave numbers that are not finite"
    relative = ((half - single).norm() / single.norm()).item()
    assert relative < 0.1, f"bf16 autocast is off by {relative:.2f} of the norm"
    assert_close(module.double()(x.double()), single.double(), 1e-4, "float64 and float32")


def mixes_each_sequence_alone(mixer: Mixer) -> None:
    """A sequence's outputs do not depend on the others of its batch, within 1e-5; in training they have no gradient."""
    module, x = _module(mixer), _sequences(4)
    alone = torch.cat([module(row) for row in torch.split(x, 1)])
    assert_close(module(x), alone, 1e-5, "a batch of 4 and 4 batches of 1")
    reach = training_reach(module, x, lambda y: y[1])
    assert not reach[[0, 2, 3]].any(), "in training, a sequence's outputs depend on the others of its batch"


def _module(mixer: Mixer) -> MixerModule:
    with initialised_from(0, "contract", mixer.name):
        return mixer.build(D_MODEL, LENGTH).eval()


def _sequences(batch: int, length: int = LENGTH, *, name: str = "one") -> Float[Tensor, "batch time d_model"]:
    return torch.randn(batch, LENGTH, D_MODEL, generator=stream(0, "contract", name))[:, :length]


def _stepped(module: MixerModule, x: Float[Tensor, "batch time d_model"]) -> tuple[Tensor, object]:
    state = module.init_state(len(x))
    outputs = []
    for token in x.unbind(1):
        y, state = module.step(token, state)
        outputs.append(y)
    return torch.stack(outputs, dim=1), state
