"""Every state mixer keeps these promises: see assay.state_mixers.base."""

import torch

from assay.contracts.shared import assert_trains, training_reach
from assay.nn.random import initialised_from, stream
from assay.state_mixers.base import StateMixer

D_MODEL = 32


def keeps_the_shape(mixer: StateMixer) -> None:
    """(batch, time, d_model) in and out."""
    y = _module(mixer)(_tokens(2, 5))
    assert y.shape == (2, 5, D_MODEL), f"(2, 5, {D_MODEL}) gave {tuple(y.shape)}"


def works_on_each_position_alone(mixer: StateMixer) -> None:
    """An output depends on its own position of its own sequence alone, within 1e-6; in training no other input has a
    gradient."""
    module, x = _module(mixer), _tokens(3, 5)
    along = torch.cat([module(token) for token in torch.split(x, 1, dim=1)], dim=1)
    across = torch.cat([module(sequence) for sequence in torch.split(x, 1)])
    for what, alone in (("positions", along), ("sequences", across)):
        worst = (module(x) - alone).abs().max().item()
        assert worst < 1e-6, f"{what} mix: {worst:.1e}"
    reach = training_reach(module, x, lambda y: y[1, 2])
    reach[1, 2] = 0
    assert not reach.any(), "in training, an output depends on other positions or sequences"


def is_finite_and_trains(mixer: StateMixer) -> None:
    """Outputs are finite, and every parameter gets a finite gradient that is not zero."""
    module = _module(mixer).train()
    y = module(_tokens(4, 8))
    assert torch.isfinite(y).all(), "outputs are not finite"
    assert_trains(module, y)


def _module(mixer: StateMixer) -> torch.nn.Module:
    with initialised_from(0, "contract", mixer.name):
        return mixer.build(D_MODEL).eval()


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, D_MODEL, generator=stream(0, "contract"))
