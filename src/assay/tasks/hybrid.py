"""The hybrid task hides slow global factors under fast local ones: which part of a sequence does a code keep?

    g ~ N(0, I)                                        the global factors: one draw per sequence, and the target
    l_0 ~ N(0, I),  l_t = a l_{t-1} + sqrt(1-a^2) e_t  the local factors, AR(1) of unit variance: pure nuisance
    f_t = [tanh(.35 g W_g), tanh(.35 l_t W_l)]         the first half is constant in time
    x_t = [0 | 0 | f_t],  x_0[context] = 1,  then noise N(0, noise^2) on every entry

The context says where the feature block is filled, L = 8:

    context 0   f f f f f f f f        everywhere
    context 1   . f . f . f . f        odd t
    context 2   . f f f . . . .        1 <= t < L/2

As in the spec. W_g and W_l come from `weights_seed`, by themselves: the data do not depend on what was drawn before.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, assert_never

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from assay.core.seeds import derive
from assay.nn.random import stream
from assay.tasks import tasks
from assay.tasks.base import Batch, Loss, TaskShape, Vectors
from assay.tasks.fields import BlockTask

SCALE = 0.35  # keeps tanh nonlinear: about a tenth of the features lie beyond |tanh| = 0.8 with 4 global factors
NOISE_FLOOR = 1e-4  # for the oracle: noise=0 is a limit, not a division by zero; float32 rounds below it
ROWS = 512  # rows the oracle solves at once: 512 rows x 512 draws x 6 features in float64 are 13 MB
FREEDOM = 5  # of the Student t draws: heavy tails cover a posterior wider than its curvature says

Factors = Float[Tensor, "batch factors"]
Features = Float[Tensor, "batch features"]
Mixing = Float[Tensor, "factors features"]


@tasks.register("hybrid")
@dataclass(frozen=True, kw_only=True)
class Hybrid(BlockTask):
    """Recover the global factors of a sequence from under local ones and noise."""

    loss: ClassVar[Loss] = "mse"
    in_context: ClassVar[bool] = False

    context: Literal[0, 1, 2] = 0
    """Where features stand: 0: at every position; 1: at the odd ones; 2: in the first half, but for its start."""
    r_global: int = 4
    """Factors that stay the same through a sequence; they are asked for."""
    r_local: int = 8
    """Factors that change from token to token; they are not asked for."""
    ar_coeff: float = 0.8
    """Correlation of a local factor with itself one token later, in [0, 1): larger is slower."""
    noise: float = 0.03
    """Standard deviation of what is added to every entry."""
    weights_seed: int = 0
    """Seed of the matrices that make features of factors; another one is another world."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("r_global", "r_local")
        self.require(
            0 <= self.ar_coeff < 1,
            f"ar_coeff={self.ar_coeff} leaves the local factors without a stationary law. Use 0 <= ar_coeff < 1.",
        )
        self.require(
            0 <= self.noise < math.inf,
            f"noise={self.noise} is not a standard deviation. Use a finite noise of 0 or more.",
        )
        self.require(
            len(range(self.L)[self.signal_positions()]) > 0,
            f"context={self.context} fills no position of a sequence of L={self.L}. Use L=4 or more.",
        )

    def shape(self) -> TaskShape:
        return TaskShape(inputs=Vectors(self.d_in), outputs=Vectors(self.r_global), length=self.L)

    def signal_positions(self) -> slice:
        """Return the positions whose feature block the context fills."""
        match self.context:
            case 0:
                return slice(0, self.L)
            case 1:
                return slice(1, self.L, 2)
            case 2:
                return slice(1, self.L // 2)
            case other:
                assert_never(other)

    @property
    def global_feature(self) -> slice:
        """The channels that carry g."""
        return slice(self.feature.start, self.feature.start + self.F_feat // 2)

    def weights(
        self, device: torch.device | str = "cpu"
    ) -> tuple[Float[Tensor, "r_global half"], Float[Tensor, "r_local half"]]:
        """Return W_g and W_l, drawn on the CPU, so that every device has the same task."""
        rng = stream(self.weights_seed, "hybrid", "weights")
        w_global = torch.randn(self.r_global, self.F_feat // 2, generator=rng)
        w_local = torch.randn(self.r_local, self.F_feat // 2, generator=rng)
        return w_global.to(device), w_local.to(device)

    def sample(self, batch: int, rng: torch.Generator) -> Batch:
        device = rng.device
        w_global, w_local = self.weights(device)
        g = torch.randn(batch, self.r_global, generator=rng, device=device)
        local = torch.tanh(SCALE * self.local_factors(batch, rng) @ w_local)
        inputs = torch.zeros(batch, self.L, self.d_in, device=device)
        inputs[:, 0, self.context % self.d_in] = 1
        filled = inputs[:, self.signal_positions(), self.feature]
        filled[..., : self.F_feat // 2] = rearrange(torch.tanh(SCALE * g @ w_global), "b f -> b 1 f")
        filled[..., self.F_feat // 2 :] = rearrange(local[self.signal_positions()], "t b f -> b t f")
        # Drawn last, whatever its size: tasks that differ in noise alone share their signal, draw for draw.
        inputs += self.noise * torch.randn(inputs.shape, generator=rng, device=device)
        return Batch(inputs=inputs, targets=g)

    def local_factors(self, batch: int, rng: torch.Generator) -> Float[Tensor, "time batch r_local"]:
        """Draw AR(1) factors as one matrix product: l_t = sum over s <= t of a^(t-s) e_s, with e_0 of unit variance.
        Time comes first, so that the product is one matrix by another."""
        shocks = torch.randn(self.L, batch * self.r_local, generator=rng, device=rng.device)
        shocks[1:] *= math.sqrt(1 - self.ar_coeff**2)
        t = torch.arange(self.L, device=rng.device)
        lag = rearrange(t, "t -> t 1") - t
        kernel = torch.tril(torch.pow(self.ar_coeff, lag.clamp(min=0)).to(shocks.dtype))
        return rearrange(kernel @ shocks, "t (b r) -> t b r", b=batch)

    def oracle(self, batch: Batch) -> Float[Tensor, "batch r_global"]:
        """Return E[g | inputs]. The noise is independent and the local half knows nothing of g, so the time mean of the
        global half over the filled positions, of noise sigma/sqrt(T), is all there is to know."""
        seen = batch.inputs[:, self.signal_positions(), self.global_feature].double()
        sigma = max(self.noise, NOISE_FLOOR) / math.sqrt(seen.shape[1])
        mixing = SCALE * self.weights(seen.device)[0].double()
        means = [posterior_mean(rows, mixing, sigma) for rows in torch.split(seen.mean(1), ROWS)]
        return torch.cat(means).to(batch.targets.dtype)


def posterior_mean(y: Features, mixing: Mixing, sigma: float, *, draws: int = 512) -> Factors:
    """Return E[g | y] for g ~ N(0, I), y = tanh(g mixing) + N(0, sigma^2): self-normalised importance sampling around
    the mode. The draws are fixed, antithetic and shared by the rows, so the answer is a function of the arguments."""
    mode = posterior_mode(y, mixing, sigma)
    _, precision = _gradient_and_precision(mode, y, mixing, sigma)
    z = _heavy_draws(draws, len(mixing)).to(y)
    # precision = C C^T, so C^-T z has the covariance of the Laplace approximation.
    upper = rearrange(torch.linalg.cholesky(precision), "b i j -> b j i")
    spread = torch.linalg.solve_triangular(upper, rearrange(z, "n r -> r n"), upper=True)
    g = rearrange(mode, "b r -> b 1 r") + rearrange(spread, "b r n -> b n r")
    log_weight = -_energy(g, rearrange(y, "b f -> b 1 f"), mixing, sigma) - _heavy_log_density(z)
    return torch.einsum("bn,bnr->br", torch.softmax(log_weight, dim=-1), g)


def posterior_mode(y: Features, mixing: Mixing, sigma: float, *, steps: int = 40) -> Factors:
    """Return argmax of p(g | y) by Gauss-Newton, each row with its own damping, which falls after a step downhill."""
    g = y.new_zeros(len(y), len(mixing))
    energy = _energy(g, y, mixing, sigma)
    damping = torch.ones_like(energy)
    for _ in range(steps):
        gradient, precision = _gradient_and_precision(g, y, mixing, sigma)
        scaled = torch.diagonal(precision, dim1=-2, dim2=-1) * rearrange(damping, "b -> b 1")
        trial = g - torch.linalg.solve(precision + torch.diag_embed(scaled), gradient)
        lower = _energy(trial, y, mixing, sigma)
        better = lower < energy
        g = torch.where(rearrange(better, "b -> b 1"), trial, g)
        energy = torch.where(better, lower, energy)
        damping = torch.where(better, damping / 5, damping * 4).clamp(1e-12, 1e12)
    return g


def _energy(
    g: Float[Tensor, "*rows factors"], y: Float[Tensor, "*rows_y features"], mixing: Mixing, sigma: float
) -> Float[Tensor, "*rows"]:
    """Return -log p(g | y) up to a constant."""
    residual = (y - torch.tanh(g @ mixing)) / sigma
    return (g.square().sum(-1) + residual.square().sum(-1)) / 2


def _gradient_and_precision(
    g: Factors, y: Features, mixing: Mixing, sigma: float
) -> tuple[Factors, Float[Tensor, "batch factors factors"]]:
    """Return the energy's gradient and the Gauss-Newton form of its Hessian, I + J^T J / sigma^2."""
    features = torch.tanh(g @ mixing)
    jacobian = mixing * rearrange((1 - features.square()) / sigma, "b f -> b 1 f")
    gradient = g - torch.einsum("brf,bf->br", jacobian, (y - features) / sigma)
    precision = torch.eye(len(mixing)).to(g) + torch.einsum("brf,bqf->brq", jacobian, jacobian)
    return gradient, precision


def _heavy_draws(draws: int, dim: int) -> Float[Tensor, "draws dim"]:
    """Return z and -z for each of draws/2 multivariate t vectors, the same ones every time. They come from a Sobol
    sequence, which halves the error of independent draws (rms .020 to .009 at noise 1)."""
    seed = derive(0, "hybrid", "oracle")
    sobol = torch.quasirandom.SobolEngine(dim + FREEDOM, scramble=True, seed=seed)
    uniform = sobol.draw(draws // 2, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    normal, chi = torch.special.ndtri(uniform).split((dim, FREEDOM), dim=-1)
    z = normal * torch.sqrt(FREEDOM / chi.square().sum(-1, keepdim=True))
    return torch.cat((z, -z))


def _heavy_log_density(z: Float[Tensor, "draws dim"]) -> Float[Tensor, " draws"]:
    return -(FREEDOM + z.shape[-1]) / 2 * torch.log1p(z.square().sum(-1) / FREEDOM)
