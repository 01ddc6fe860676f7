"""Every mixer keeps these promises: see assay.mixers.base."""

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from operator import itemgetter

import torch
from jaxtyping import Float
from torch import Tensor

from assay.contracts.shared import assert_close, assert_trains, shared, training_reach
from assay.core.errors import UserError
from assay.mixers.base import Mixer, MixerModule, State, state_scalars
from assay.nn.random import initialised_from, stream

D_MODEL = 32
SHORT, LONG = 24, 136
LENGTHS = (SHORT, LONG, WALKED := 264, LONGEST := 1032)
"""The second spans chunks of up to 128 tokens: a fault between one chunk and the next shows beyond the first. The third
is the longest that is walked token by token, and the last as long as any question of a card: a form for long sequences
alone may not read the future either."""
CUTS = (1, 5, 15, 16, 17, 23, 31, 32, 33, 40, 63, 64, 65, 100, 127, 128, 129, 135)
FAR_CUTS = (1, 100, 255, 256, 257, 511, 512, 513, 1000, 1023, 1024, 1025)
"""Positions from which on tokens are changed: around the usual borders of chunks, and in their middle."""


def keeps_the_shape_for_any_length(mixer: Mixer) -> None:
    """(batch, time, d_model) in and out, for every length from 1 to max_len."""
    for longest in _lengths(mixer):
        module = _module(mixer, longest)
        for length in (each for each in (1, 2, 7, 24, 31, 32, 33, 65, 129, LONG) if each <= longest):
            y = module(_sequences(3, length))
            assert y.shape == (3, length, D_MODEL), f"(3, {length}, {D_MODEL}) gave {tuple(y.shape)}"


def gives_finite_numbers(mixer: Mixer) -> None:
    """Outputs are finite numbers, for standard normal inputs and the weights that it starts with."""
    for length in _lengths(mixer):
        wrong = (~_module(mixer, length)(_sequences(3, length)).isfinite()).any(2).any(0)
        first = int(wrong.int().argmax())
        assert not wrong.any(), f"output {first} of {length} is NaN or infinite, the first of {int(wrong.sum())}"


def does_not_read_the_future(mixer: Mixer) -> None:
    """Changing the tokens after t leaves the outputs up to t as they were (an FFT: within 1e-5), without gradients."""
    for length in _lengths(mixer, up_to=LONGEST):
        cuts = torch.tensor([t for t in (CUTS if length <= LONG else FAR_CUTS) if t < length])
        module, x = _module(mixer, length), _sequences(len(cuts), length)
        before = torch.arange(length) < cuts[:, None]  # one sequence for each position, so that two passes do for all
        changed = torch.where(before[..., None], x, _sequences(len(cuts), length, name="other"))
        moved = (module(x) - module(changed)).abs().amax(2)
        assert not moved.isnan().any(), "not known: outputs are not finite numbers"
        wrong = (before & (moved > mixer.rounding)).any(1)
        assert not wrong.any(), _ahead(cuts[wrong], length, "moved when the tokens from {t} on changed")
        reach = training_reach(module, x, itemgetter(before), least=mixer.rounding)
        wrong = (reach & ~before).any(1)
        assert not wrong.any(), "in training, " + _ahead(cuts[wrong], length, "depends on the tokens from {t} on")


def reads_the_past(mixer: Mixer) -> None:
    """The last output depends on the first token (within reach of a window or a convolution, on the one before)."""
    module, x = _module(mixer), _sequences(3, 2)
    changed = torch.cat([_sequences(3, 2, name="other")[:, :1], x[:, 1:]], dim=1)
    assert not torch.equal(module(x)[:, 1], module(changed)[:, 1]), (
        "the second output does not depend on the first token"
    )


def says_if_it_is_blind_to_order(mixer: Mixer) -> None:
    """`ordered` is declared where swapping the two tokens before the last leaves the last output as it was."""
    module, x = _module(mixer).double(), _sequences(3).double()
    swapped = x[:, [*range(SHORT - 3), SHORT - 2, SHORT - 3, SHORT - 1]]
    with torch.no_grad():
        moved = (module(x)[:, -1] - module(swapped)[:, -1]).abs().max().item()
    declared = any("ordered" in vars(kind) for kind in type(mixer).__mro__ if kind is not Mixer)
    assert not moved <= 1e-9 or declared or not mixer.tells_order(), (
        "swapped, they leave it as it was. Add `ordered = False` to the class, and its models get a table of positions"
    )


def steps_as_it_runs_in_parallel(mixer: Mixer) -> None:
    """Token by token with the state gives what the parallel form gives, within 1e-5."""
    for length in _lengths(mixer, up_to=WALKED):
        y = _module(mixer, length)(_sequences(3, length))
        stepped, _ = _walked(mixer, length)
        assert_close(y, stepped, _rounding(y), f"the two forms, over {length} tokens,")


def carries_the_state_it_declares(mixer: Mixer) -> None:
    """`core_state` (or `state_size`) is the number of scalars really in the state, after 1 token and after many."""
    lengths = list(_lengths(mixer))
    x, unused = _sequences(3, lengths[-1]), _module(mixer, lengths[-1])
    stepped, states = _walked(mixer, lengths[-1])
    says = "state_size" if type(mixer).core_state is Mixer.core_state else "core_state"
    for length in (1, *lengths):
        before, real = states[length]
        declared = mixer.state_size(D_MODEL, length)
        beside = declared - getattr(mixer, says)(D_MODEL, length)
        kept = f" beside the {beside} of its short convolution" if beside else ""
        assert real == declared, (
            f"after {_tokens(length)} the state holds {real - beside} scalars{kept}, and {says} says "
            f"{declared - beside}"
        )
        with torch.no_grad():
            again, _ = unused.step(x[:, length - 1], deepcopy(before))
        same = torch.equal(stepped[:, length - 1], again)
        assert same, f"after {_tokens(length)} the module holds more of them than its state does"


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
    for length in _lengths(mixer):
        module, x = _module(mixer, length), _sequences(4, length)
        alone = torch.cat([module(row) for row in torch.split(x, 1)])
        assert_close(module(x), alone, _rounding(alone), f"a batch of 4 and 4 batches of 1, of {length} tokens,")
        reach = training_reach(module, x, lambda y: y[1])
        assert not reach[[0, 2, 3]].any(), "in training, a sequence's outputs depend on the others of its batch"


def _tokens(length: int) -> str:
    return f"{length} token{'s' * (length > 1)}"


def _lengths(mixer: Mixer, *, up_to: int = LONG) -> Iterator[int]:
    """Yield the lengths to try: not a long one where the mixer refuses it, as with too few slots for a pattern."""
    for length in (each for each in LENGTHS if each <= up_to):
        with suppress(UserError):
            _module(mixer, length)
            yield length


def _rounding(y: Tensor) -> float:
    """Return how far float32 may take two ways of one sum apart: 1e-5; over a long sequence, whose sums grow, 1e-5 of
    the largest output where that is above 1."""
    return 1e-5 * (max(1.0, y.abs().max().item()) if y.shape[1] > SHORT else 1.0)


def _ahead(cuts: Tensor, length: int, how: str) -> str:
    first = int(cuts[0])
    before = "output 0" if first == 1 else f"an output of 0 to {first - 1}"
    return f"{before} of {length} {how.format(t=first)}"


def _module(mixer: Mixer, max_len: int = SHORT) -> MixerModule:
    with initialised_from(0, "contract", mixer.name):
        return mixer.build(D_MODEL, max_len).eval()


def _sequences(batch: int, length: int = SHORT, *, name: str = "one") -> Float[Tensor, "batch time d_model"]:
    # Contiguous: matrix products round otherwise with another layout, and equal bits are asked for.
    drawn = LONG if length <= LONG else length
    return torch.randn(batch, drawn, D_MODEL, generator=stream(0, "contract", name))[:, :length].contiguous()


@shared
@torch.no_grad()
def _walked(mixer: Mixer, length: int) -> tuple[Float[Tensor, "batch time d_model"], dict[int, tuple[State, int]]]:
    """Return the outputs token by token; and for the first token, that of the short length and the last, counted from
    1, the state before it and the scalars of the state after it."""
    module, x = _module(mixer, length), _sequences(3, length)
    state, outputs, states = module.init_state(len(x)), [], {}
    for count, token in enumerate(x.unbind(1), 1):
        marked = count in (1, SHORT, length)
        before = deepcopy(state) if marked else None
        y, state = module.step(token, state)
        outputs.append(y)
        if marked:
            states[count] = before, state_scalars(state)
    return torch.stack(outputs, dim=1), states
