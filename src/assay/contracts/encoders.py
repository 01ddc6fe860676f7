"""Every encoder keeps these promises: see assay.encoders.base."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.contracts.shared import assert_close, assert_trains
from assay.encoders.base import Encoder
from assay.nn.random import initialised_from, stream

LENGTH, D_IN, D_CODE = 32, 24, 32  # the study's sizes


def gives_one_code_per_sequence(encoder: Encoder) -> None:
    """The output is (batch, d_code); a foreign encoder may give (batch, time, d_code), which is pooled."""
    code = _module(encoder)(_sequences(4))
    ours = type(encoder).__module__.startswith("assay.")
    allowed = [(4, D_CODE)] if ours else [(4, D_CODE), (4, LENGTH, D_CODE)]
    assert tuple(code.shape) in allowed, (
        f"(4, {LENGTH}, {D_IN}) gave {tuple(code.shape)}, expected {' or '.join(map(str, allowed))}"
    )


def takes_any_size(encoder: Encoder) -> None:
    """Other sizes work too: length 20, d_in 10, d_code 7."""
    module = _module(encoder, length=20, d_in=10, d_code=7)
    code = module(torch.randn(3, 20, 10, generator=stream(0, "contract")))
    assert (code.shape[0], code.shape[-1]) == (3, 7), f"(3, 20, 10) gave {tuple(code.shape)}, expected (3, 7)"


def codes_each_sequence_alone(encoder: Encoder) -> None:
    """A sequence's code does not depend on the others of its batch, within 1e-5."""
    module, x = _module(encoder), _sequences(6)
    alone = torch.cat([module(row) for row in torch.split(x, 1)])
    assert_close(module(x), alone, 1e-5, "a batch of 6 and 6 batches of 1")


def is_the_same_twice(encoder: Encoder) -> None:
    """In evaluation mode the same input gives the same bits."""
    module, x = _module(encoder), _sequences(6)
    assert_close(module(x), module(x), 0.0, "two forward passes")


def is_finite(encoder: Encoder) -> None:
    """Codes are finite, for inputs of ordinary size, of zero and of a hundred."""
    module, x = _module(encoder), _sequences(6)
    for scale in (1.0, 0.0, 100.0):
        bad = (~torch.isfinite(module(scale * x))).sum().item()
        assert bad == 0, f"{bad} entries of the code are not finite for inputs of size {scale}"


def distinguishes_sequences(encoder: Encoder) -> None:
    """Different sequences get different codes."""
    code = _module(encoder)(_sequences(6))
    spread = code.std(dim=0).max().item()
    assert spread > 0, f"6 random sequences all have the code {code[0].flatten()[:4].tolist()} ..."


def trains_every_parameter(encoder: Encoder) -> None:
    """Each parameter that asks for a gradient gets a finite one that is not zero."""
    module = _module(encoder).train()
    assert_trains(module, module(_sequences(128)))


def works_in_float64(encoder: Encoder) -> None:
    """In float64 the code is float64, and what float32 gave within 1e-4."""
    module, x = _module(encoder), _sequences(6)
    single = module(x)
    double = module.double()(x.double())
    assert double.dtype is torch.float64, f"float64 in gave {double.dtype} out"
    assert_close(double, single.double(), 1e-4, "float64 and float32")


def keeps_its_weights(encoder: Encoder) -> None:
    """A forward pass in evaluation mode changes no parameter and no buffer."""
    module = _module(encoder)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module(_sequences(6))
    changed = [name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])]
    assert not changed, f"a forward pass changed {', '.join(changed)}"


def _module(encoder: Encoder, *, length: int = LENGTH, d_in: int = D_IN, d_code: int = D_CODE) -> nn.Module:
    with initialised_from(0, "contract", "init"):
        return encoder.build(length, d_in, d_code).eval()


def _sequences(batch: int) -> Float[Tensor, "batch time d_in"]:
    return torch.randn(batch, LENGTH, D_IN, generator=stream(0, "contract"))
