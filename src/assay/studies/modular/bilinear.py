"""One bilinear layer on modular addition (Pearce et al. 2025): z = W_p [(W_l x) * (W_r x)], x = [onehot(a); onehot(b)].

The width d_hidden is the bottleneck: the rank at which the model may write the table (a, b) -> (a + b) mod P. Four
units are enough (`constructive_model`), so a wider model that fails has failed to learn, not to fit.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.core.errors import UserError

Batches = Iterable[tuple[Tensor, Tensor]]
ONE_HOT = 2**24
"""Most numbers of one-hot inputs built at once: half a GB."""


class Bilinear(nn.Linear):
    """(W_l x) * (W_r x): one linear map whose two halves are multiplied, so that a saved weight is (2 d_out, d_in)."""

    def __init__(self, d_in: int, d_out: int, bias: bool = False) -> None:
        super().__init__(d_in, 2 * d_out, bias=bias)

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        left, right = super().forward(x).chunk(2, dim=-1)
        return left * right

    @property
    def w_l(self) -> Float[Tensor, "d_out d_in"]:
        return self.weight.chunk(2)[0]

    @property
    def w_r(self) -> Float[Tensor, "d_out d_in"]:
        return self.weight.chunk(2)[1]


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a model; the default width is the modulus."""

    p: int = 64
    d_hidden: int | None = None
    bias: bool = False

    def __post_init__(self) -> None:
        if self.p < 2 or self.width < 1:
            raise UserError(f"P={self.p}, d_hidden={self.width}: P is at least 2 and a width at least 1.")

    @property
    def width(self) -> int:
        return self.p if self.d_hidden is None else self.d_hidden


class Model(nn.Module):
    """Bilinear(2P, d_hidden), then Linear(d_hidden, P): logits of (a + b) mod P."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = self.config = cfg
        self.bi_linear = Bilinear(2 * cfg.p, cfg.width, bias=cfg.bias)
        self.projection = nn.Linear(cfg.width, cfg.p, bias=cfg.bias)

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch P"]:
        return self.projection(self.bi_linear(x))

    @property
    def w_l(self) -> Float[Tensor, "d_hidden inputs"]:
        return self.bi_linear.w_l

    @property
    def w_r(self) -> Float[Tensor, "d_hidden inputs"]:
        return self.bi_linear.w_r

    @property
    def w_p(self) -> Float[Tensor, "P d_hidden"]:
        return self.projection.weight

    def fit(
        self,
        train_loader: Batches,
        val_loader: Batches,
        optimizer: torch.optim.Optimizer | None = None,
        epochs: int = 500,
        loss_fn: Callable[[Tensor, Tensor], Tensor] | None = None,
        device: str | torch.device | None = None,
        early_stop_acc: float | None = 1.0,
        verbose: bool = True,
        log_every: int = 50,
        *,
        lr: float = 3e-3,
        weight_decay: float = 1e-4,
    ) -> dict[str, Any]:
        """Train on batches of (inputs, answers) until the validation accuracy reaches `early_stop_acc`; by AdamW with
        `lr` and `weight_decay` unless an optimizer is given. Returns train_loss and val_acc of each epoch, and
        stopped_epoch. The plain loop: `bilinear_bank` does the same for many models at once."""
        place = next(self.parameters()).device if device is None else torch.device(device)
        self.to(place)
        optimizer = optimizer or torch.optim.AdamW(self.parameters(), lr=lr, weight_decay=weight_decay)
        loss_fn = loss_fn or nn.functional.cross_entropy
        losses, accuracies = list[float](), list[float]()
        for epoch in range(1, epochs + 1):
            found = []
            for inputs, answers in train_loader:
                optimizer.zero_grad()
                loss = loss_fn(self(inputs.to(place)), answers.to(place))
                loss.backward()
                optimizer.step()
                found.append(loss.detach())
            losses.append(torch.stack(found).mean().item() if found else 0.0)
            accuracies.append(self._accuracy(val_loader, place))
            if verbose and epoch % log_every == 0:
                print(f"epoch {epoch}: loss {losses[-1]:.4f}, validation accuracy {accuracies[-1]:.4f}")
            if early_stop_acc is not None and accuracies[-1] >= early_stop_acc:
                break
        return {"train_loss": losses, "val_acc": accuracies, "stopped_epoch": len(accuracies)}

    @torch.no_grad()
    def _accuracy(self, batches: Batches, place: torch.device) -> float:
        right = [self(inputs.to(place)).argmax(dim=-1) == answers.to(place) for inputs, answers in batches]
        return torch.cat(right).double().mean().item()


def init_model(p: int = 64, d_hidden: int | None = None, bias: bool = False) -> Model:
    """Initialise a model from the global generator; `nn.random.initialised_from` lends it a stream."""
    return Model(ModelConfig(p, d_hidden, bias))


def model_of(state: Mapping[str, Tensor]) -> Model:
    """Rebuild a model from saved weights, whose shapes give its sizes."""
    readout = state["projection.weight"]
    with torch.device("meta"):  # nothing is drawn: the weights are those given
        model = init_model(len(readout), readout.shape[1])
    model.load_state_dict({name: weight.clone() for name, weight in state.items()}, assign=True)
    return model.requires_grad_(True)


def addition_table(P: int) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """a, b and (a + b) mod P of all P^2 pairs; row aP + b."""
    a, b = torch.arange(P).repeat_interleave(P), torch.arange(P).repeat(P)
    return a, b, (a + b) % P


def one_hot(a: Int[Tensor, " pairs"], b: Int[Tensor, " pairs"], P: int) -> Float[Tensor, "pairs inputs"]:
    """The inputs [onehot(a); onehot(b)] of a model."""
    return torch.cat([nn.functional.one_hot(a, P), nn.functional.one_hot(b, P)], dim=1).to(torch.get_default_dtype())


@torch.no_grad()
def constructive_model(P: int, loudness: Mapping[int, float] | None = None, phase: float = 0.0) -> Model:
    """Four units that solve addition mod P, by hand: with angles 2 pi a / P and 2 pi b / P,

        2 cos(a + b) = (cos a - sin b)(sin a + cos b) + (cos a + sin b)(cos b - sin a)
        2 sin(a + b) = (sin a + sin b)(cos a + cos b) + (sin a - sin b)(cos b - cos a)

    and z_r = cos(a + b - r), largest where r = a + b, by 1 - cos(2 pi / P). Angles may be multiplied by other
    frequencies than 1, with four units for each, and each as loud as told. A phase is added to a's angles and to the
    answers': the logits stay as they are, by other units."""
    loudness = {1: 1.0} if loudness is None else loudness
    left, right, readouts = list[Tensor](), list[Tensor](), list[Tensor]()
    for frequency, loud in loudness.items():
        angle = 2 * math.pi * (frequency * torch.arange(P) % P).double() / P
        (ca, sa), (c, s) = (((angle + turn).cos(), (angle + turn).sin()) for turn in (phase, 0.0))
        left += [torch.cat(pair) for pair in ((ca, -s), (ca, s), (sa, s), (sa, -s))]
        right += [torch.cat(pair) for pair in ((sa, c), (-sa, c), (ca, c), (-ca, c))]
        readouts += [loud * wave.float() / 2 for wave in (ca, ca, sa, sa)]
    model = init_model(P, len(left))
    model.bi_linear.weight.copy_(torch.stack([*left, *right]))
    model.projection.weight.copy_(torch.stack(readouts, dim=1))
    return model


@torch.no_grad()
def answered(model: Model) -> Float[Tensor, " pairs"]:
    """1 where a pair is answered right, for all P^2; row aP + b."""
    P = model.config.p
    a, b, target = addition_table(P)
    pieces = zip(a.split(pairs_at_once(P)), b.split(pairs_at_once(P)), strict=True)
    given = torch.cat([model(one_hot(*pairs, P)).argmax(dim=1) for pairs in pieces])
    return (given == target).double()


def pairs_at_once(P: int) -> int:
    """Number of pairs whose one-hot inputs are built at once: all up to P = 256."""
    return max(1, ONE_HOT // P)
