"""Every mixer keeps these promises: see assay.mixers.base."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from time import process_time

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from assay.contracts.shared import assert_close, assert_trains, shared, training_reach
from assay.core.errors import UserError
from assay.mixers.base import Mixer, MixerModule, State, replays, state_scalars
from assay.nn.random import initialised_from, stream

D_MODEL = 32
SHORT, LONG = 24, 136
LENGTHS = (SHORT, LONG, WALKED := 264, LONGEST := 1032)
"""The second spans chunks of up to 128 tokens: a fault between one chunk and the next shows beyond the first. The last
is as long as any question of a card: a form for long sequences alone may not read the future either."""
CUTS = (1, 5, 15, 16, 17, 23, 31, 32, 33, 40, 63, 64, 65, 100, 127, 128, 129, 135)
FAR_CUTS = (1, 100, 255, 256, 257, 512, 1000, 1024)
"""Positions from which on tokens are changed: around the usual borders of chunks, and in their middle."""
ROUNDING = 2e-6
"""How far an output, or a gradient, may move for no reason but rounding: as a share of the largest number of the
sequence, times the root of its length, since sums of tokens grow so. Convolutions in blocks and by FFT mix all tokens,
and what has to cancel does so to 5e-7 of the largest; with a norm behind a sum of all tokens to 1e-6 at 24 of them and
4e-5 at 1,032, where 1e-5 and 6e-5 pass. A leak of 1e-4 of a token beside a mean of the past moves it by 2e-4. What
moves by more is tried in float64 before it is called a leak: rounding is gone there."""
DOUBTFUL = 1e-3
"""Share of the largest number up to which float64 decides whether a move is rounding."""
RARE = 4.0
"""Every second sequence is so many times as large: what happens to one normal number in a thousand is common there."""
TOGETHER, SECONDS = 32, 1.0
"""Places tried in one pass, and the seconds of this processor that are spent on every place of long sequences."""


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
    """Outputs up to t have no gradient from the tokens after t, and stay when those change, also as parameters move."""
    for length in _lengths(mixer, up_to=LONGEST):
        cuts = range(1, SHORT) if length == SHORT else CUTS if length <= LONG else FAR_CUTS
        for training in (False, True) if length <= LONG else (True,):
            for moved in (False, True) if length == SHORT else (True,):
                known = _looks_at_what_came(mixer, length, cuts, training=training, moved=moved)
            known = known or _looks_at_what_came(mixer, length, cuts, training=training, moved=False)
            assert known, "not known: outputs are not finite numbers"
    begin, groups = process_time(), torch.randperm(-(-(length - 1) // TOGETHER), generator=stream(0, "contract"))
    for start in groups.tolist() if replays(_module(mixer)) else ():  # nothing else goes to every place of such a mixer
        cuts = range(1, length)[TOGETHER * start :][:TOGETHER]
        if process_time() - begin < 2 * SECONDS:  # more, since it is not walked far
            with torch.no_grad():
                _looks_at_what_came(mixer, cuts[-1] + 1, cuts, training=False, moved=False)


def reads_the_past(mixer: Mixer) -> None:
    """The last output depends on the tokens before it."""
    module, x = _module(mixer, moved=True), _sequences(3)
    changed = torch.cat([_sequences(3, name="other")[:, :-1], x[:, -1:]], dim=1)
    assert not torch.equal(module(x)[:, -1], module(changed)[:, -1]), "the last output depends on the last token alone"


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
    for length in _walks(mixer):
        stepped, _ = _walked(mixer, length)
        y = _module(mixer, length)(_sequences(3, length))[:, : stepped.shape[1]]
        assert_close(y, stepped, _rounding(y), f"the two forms, over {y.shape[1]} tokens,")


def carries_the_state_it_declares(mixer: Mixer) -> None:
    """`core_state` (or `state_size`) is the number of scalars really in the state, after 1 token and after many."""
    longest = _walks(mixer)[-1]
    x, unused = _sequences(3, longest), _module(mixer, longest)
    stepped, states = _walked(mixer, longest)
    says = "state_size" if type(mixer).core_state is Mixer.core_state else "core_state"
    for length, (before, real) in states.items():
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
    module = _module(mixer, moved=True).train()  # behind a zero nothing has a gradient at first
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


def _looks_at_what_came(mixer: Mixer, length: int, cuts: Iterable[int], *, training: bool, moved: bool) -> bool:
    """Raise where an output before a cut reads a token from there on; return whether anything could be told, of finite
    numbers. What is gone in float64 was rounding."""
    cut = torch.tensor([t for t in cuts if t < length])
    before = torch.arange(length) < cut[:, None]  # a sequence for each cut, so that two passes do for all
    plain, other = (_sequences(1, length, name=name).repeat(len(cut), 1, 1) for name in ("one", "other"))
    plain[::2] *= RARE
    changed = torch.where(before[..., None], plain, other)
    for exact in (False, True):
        module, twin = (_module(mixer, length, moved=moved, exact=exact).train(training) for _ in range(2))
        twin.load_state_dict(module.state_dict())
        x, after = (each.to(torch.float64 if exact else each).detach().requires_grad_() for each in (plain, changed))
        with initialised_from(0, "dropout"):
            y = module(x)
        with initialised_from(0, "dropout"):
            shift = twin(after).detach() - y.detach()
        if (chosen := y[before]).requires_grad:
            (chosen * torch.randn(chosen.shape, generator=stream(0, "contract", "weights"))).sum().backward()
        gradient = torch.zeros_like(x) if x.grad is None else x.grad
        pairs = ((shift, y.detach(), before), (gradient, gradient, ~before))
        by_value, by_gradient = (_beyond(moves, beside) & there for moves, beside, there in pairs)
        if not (by_value | by_gradient).any():
            return bool((shift + gradient).isfinite().all((1, 2)).any())
        if any((_beyond(moves, beside, share=DOUBTFUL) & there).any() for moves, beside, there in pairs):
            break  # no rounding: a layer may take another way in float64
    found, how = (by_value, "moved with the") if by_value.any() else (by_gradient, "has a gradient from the")
    first = int(cut[found.any(1)][0])
    where = "output 0" if first == 1 else f"an output of 0 to {first - 1}"
    when = "in training, " * training + "with its parameters moved by noise, " * (moved and length == SHORT)
    norms = [name for name, part in module.named_modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    told = f"; BatchNorm ({', '.join(norms)}) takes its statistics over all tokens" if norms and training else ""
    raise AssertionError(f"{when}{where} of {length} {how} tokens from {first} on{told}")


def _beyond(
    shift: Float[Tensor, "batch time d"], beside: Float[Tensor, "batch time d"], *, share: float = 0.0
) -> Bool[Tensor, "batch time"]:
    """Return the tokens at which something moved by more than rounding, or that share of the sequence's largest number,
    in sequences of finite numbers."""
    largest = torch.maximum(shift.abs(), beside.abs()).amax((1, 2), keepdim=True)
    least = (share or ROUNDING * shift.shape[1] ** 0.5) * largest
    return (shift.abs() > least).any(2) & largest.isfinite()[..., 0]


def _tokens(length: int) -> str:
    return f"{length} token{'s' * (length > 1)}"


def _lengths(mixer: Mixer, *, up_to: int = LONG) -> Iterator[int]:
    """Yield the lengths to try: not a long one where the mixer refuses it, as with too few slots for a pattern."""
    for length in (each for each in LENGTHS if each <= up_to):
        with suppress(UserError):
            _module(mixer, length)
            yield length


def _walks(mixer: Mixer) -> list[int]:
    """Return the lengths to go token by token: the first and the last, not so far where each token goes over those
    before it."""
    lengths = list(_lengths(mixer, up_to=LONG if replays(_module(mixer)) else LONGEST))
    return [*dict.fromkeys((lengths[0], lengths[-1]))]


def _rounding(y: Tensor) -> float:
    """Return how far float32 may take two ways of one sum apart: 1e-5; over a long sequence, whose sums grow, 1e-5 of
    the largest output where that is above 1."""
    return 1e-5 * (max(1.0, y.abs().max().item()) if y.shape[1] > SHORT else 1.0)


def _module(mixer: Mixer, max_len: int = SHORT, *, moved: bool = False, exact: bool = False) -> MixerModule:
    """Build the module; `moved`: with every parameter .01 to .03 off, so that none that is learned stays at zero. By
    more, a recurrence that is stable as it starts would no longer be. `exact`: in float64."""
    with initialised_from(0, "contract", mixer.name):
        module = mixer.build(D_MODEL, max_len).eval()
    rng = stream(0, "contract", "moved")
    for parameter in module.parameters() if moved else ():
        if parameter.requires_grad:
            signs = torch.randint(0, 2, parameter.shape, generator=rng) * 2 - 1
            parameter.data += (signs * (0.01 + 0.02 * torch.rand(parameter.shape, generator=rng))).to(parameter)
    return module.double() if exact else module


def _sequences(batch: int, length: int = SHORT, *, name: str = "one") -> Float[Tensor, "batch time d_model"]:
    # Contiguous: matrix products round otherwise with another layout, and equal bits are asked for.
    drawn = LONG if length <= LONG else length
    return torch.randn(batch, drawn, D_MODEL, generator=stream(0, "contract", name))[:, :length].contiguous()


@shared
@torch.no_grad()
def _walked(mixer: Mixer, length: int) -> tuple[Float[Tensor, "batch time d_model"], dict[int, tuple[State, int]]]:
    """Return the outputs token by token, beyond WALKED of them as many as SECONDS of this processor allow; and for some
    tokens, counted from 1, the state before it and the scalars of the state after it."""
    module, x = _module(mixer, length), _sequences(3, length)
    state, outputs, states, begin = module.init_state(len(x)), [], {}, process_time()
    for count, token in enumerate(x.unbind(1), 1):
        if count > WALKED and process_time() - begin > SECONDS:
            break
        marked = count in (1, *LENGTHS)
        before = deepcopy(state) if marked else None
        y, state = module.step(token, state)
        outputs.append(y)
        if marked:
            states[count] = before, state_scalars(state)
    return torch.stack(outputs, dim=1), states
