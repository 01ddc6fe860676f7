"""Decoder-free coding by implicit EM with InfoMax trains an encoder alone, a = relu(W x + b), on

    lambda_lse LSE + lambda_var VAR + lambda_tc TC + lambda_wr WR           (assay.nn.infomax has the terms)

Ablations A-D of the paper are its weights (studies/sae/config/ablation.yaml). Two things the paper leaves open are
options here. `scale`: VAR falls for ever as W grows; `unit_norm` codes with W's rows over their norms, `hinge` asks for
a deviation of 1 and no more (VICReg). `decorrelation`: `logdet` is -log det of the shrunk correlation matrix, which
sees more than pairs; it needs a batch of 4 units at least, below which the matrix is mostly sampling noise.

As in the spec. LSE is a sum over the batch, as its code has it, where the paper writes it for one row; `scale` and
`decorrelation` are ours, and off by default.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize, relu, softplus

from assay.core.errors import UserError
from assay.nn import infomax
from assay.sparse_coders import sparse_coders
from assay.sparse_coders.base import Codes, Directions, EncoderModule, Rows, Terms, TrainedCoder, project, steady

Activation = Literal["relu", "identity", "softplus"]
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"relu": relu, "softplus": softplus, "identity": lambda z: z}
SHRINKAGE = 0.1
"""Share of the identity in the correlation matrix whose determinant is taken."""
WEIGHTS = ("lambda_lse", "lambda_var", "lambda_tc")
"""Weights in which the models of a module may differ. Not lambda_wr: with it gradients come from autograd, without it
they are written out, so the bits of a model would depend on the others."""


class Module(EncoderModule):
    lambda_lse: Tensor
    lambda_var: Tensor
    lambda_tc: Tensor
    lambda_wr: Tensor

    def __init__(
        self, models: int, d_in: int, d_code: int, *, activation: Activation, scale: str, decorrelation: str,
        variance_eps: float, lambda_wr: float, **weights: Tensor,
    ) -> None:  # fmt: skip
        super().__init__(models, d_in, d_code)
        self.activation, self.scale, self.decorrelation, self.eps = activation, scale, decorrelation, variance_eps
        for name in WEIGHTS:
            self.register_buffer(name, weights[name].float())
        self.register_buffer("lambda_wr", torch.full((models,), lambda_wr))
        # Written out by hand where that is simple; the other forms are left to autograd.
        self.redundancy = lambda_wr != 0
        self.analytic = activation != "softplus" and decorrelation == "pairs" and not self.redundancy

    @property
    def ignores_dark_inputs(self) -> bool:
        return self.scale != "unit_norm" and not self.redundancy

    @property
    def graphable(self) -> bool:
        return self.decorrelation != "logdet"

    def preactivations(self, x: Rows) -> Codes:
        return project(x, self._rows(), self.b_enc)

    def _rows(self) -> Directions:
        return normalize(self.W_enc, dim=2) if self.scale == "unit_norm" else self.W_enc

    def encode(self, x: Rows) -> Codes:
        return ACTIVATIONS[self.activation](self.preactivations(x))

    def loss(self, x: Rows) -> Terms:
        a = self.encode(x)
        hinged = self.scale == "hinge"
        var = relu(1 - (a.var(dim=1) + self.eps).sqrt()).sum(dim=1) if hinged else infomax.variance(a, self.eps)
        tc = infomax.correlation(a) if self.decorrelation == "pairs" else log_determinant(a)
        terms = {"lse": infomax.lse(a)[0], "var": var, "tc": tc}
        total = self.lambda_lse * terms["lse"] + self.lambda_var * terms["var"] + self.lambda_tc * terms["tc"]
        if self.redundancy:
            terms["wr"] = infomax.weight_redundancy(self.W_enc)
            total = total + self.lambda_wr * terms["wr"]
        return {"total": total, **terms}

    @torch.no_grad()
    def gradient(self, x: Rows) -> Terms:
        """By hand: VAR and TC together are one K x K matrix A applied to the centred activations c,

            d/da = lambda_lse r + A c,   A_ij = 4 lambda_tc / (B-1) corr_ij / (s_i s_j)                  (i != j)
            A_jj = -2 lambda_var / (B-1) / (var_j + eps) - 4 lambda_tc / (B-1) sum_i corr_ij^2 / (s_j sd_j)

        with s = sd + 1e-8; of the hinge, with h = sqrt(var + eps), the first term is -lambda_var / (B-1) 1[h < 1] / h.
        Units come before rows, (model, unit, row): reductions over the batch are contiguous."""
        if not self.analytic:
            return super().gradient(x)
        batch, groups = x.shape[1], len(x)
        rows = self._rows()
        W = rearrange(rows, "(g m) k d -> g (m k) d", g=groups)
        bias = rearrange(self.b_enc, "(g m) k -> g (m k) 1", g=groups)
        z = rearrange(torch.baddbmm(bias, W, x.mT), "g (m k) b -> (g m) k b", k=self.d_code)
        a = ACTIVATIONS[self.activation](z)
        g, terms = self._activation_gradient(a, batch)
        if self.activation == "relu":
            g.mul_(z > 0)
        into = rearrange(self.W_enc.grad, "(g m) k d -> g (m k) d", g=groups)
        torch.bmm(rearrange(g, "(g m) k b -> g (m k) b", g=groups), x, out=into)
        if self.scale == "unit_norm" and self.W_enc.grad is not None:
            # A row's gradient along itself is zero, and across it inversely proportional to its norm.
            along = (self.W_enc.grad * rows).sum(dim=2, keepdim=True)
            self.W_enc.grad.addcmul_(rows, along, value=-1).div_(self.W_enc.norm(dim=2, keepdim=True))
        torch.sum(g, dim=2, out=self.b_enc.grad)
        return terms

    def _activation_gradient(self, a: Float[Tensor, "models unit batch"], batch: int) -> tuple[Tensor, Terms]:
        least = a.amin(dim=1, keepdim=True)
        shares = steady(torch.exp, least - a)
        sums = shares.sum(dim=1, keepdim=True)
        lse = (least - steady(torch.log, sums)).sum(dim=(1, 2))
        c = a - a.mean(dim=2, keepdim=True)
        cov = torch.bmm(c, c.mT).div_(batch - 1)
        var = cov.diagonal(dim1=1, dim2=2)
        sd = var.sqrt()
        s = sd + infomax.TINY
        corr = cov / (s[:, :, None] * s[:, None, :])
        corr.diagonal(dim1=1, dim2=2).zero_()
        squares = corr.square().sum(dim=2)
        var_term, resistance = self._variance(var)
        tc = squares.sum(dim=1)
        lt, lv = self.lambda_tc[:, None] * (4 / (batch - 1)), self.lambda_var[:, None] * (2 / (batch - 1))
        A = corr.mul_(lt[:, :, None] / (s[:, :, None] * s[:, None, :]))
        moving = torch.where(sd > 0, sd, torch.ones_like(sd))
        A.diagonal(dim1=1, dim2=2).copy_(-lv / resistance - lt * squares / (s * moving))
        g = torch.baddbmm(shares.mul_(self.lambda_lse[:, None, None] / sums), A, c)
        total = self.lambda_lse * lse + self.lambda_var * var_term + self.lambda_tc * tc
        return g, {"total": total, "lse": lse, "var": var_term, "tc": tc}

    def _variance(self, var: Float[Tensor, "models unit"]) -> tuple[Tensor, Tensor]:
        """The variance term, and one over its derivative by the variance of each unit, negated."""
        if self.scale == "hinge":
            h = (var + self.eps).sqrt()
            return relu(1 - h).sum(dim=1), torch.where(h < 1, 2 * h, torch.inf)
        return -steady(torch.log, var + self.eps).sum(dim=1), var + self.eps


def log_determinant(a: Float[Tensor, "models batch unit"]) -> Float[Tensor, " models"]:
    """-log det of the correlation matrix, shrunk towards the identity."""
    found = infomax.correlations(a)
    eye = torch.eye(a.shape[2], dtype=a.dtype, device=a.device)
    # A constant unit has a row of zeros, the diagonal included: it counts as uncorrelated with all others.
    missing = torch.diag_embed(1 - found.diagonal(dim1=1, dim2=2))
    shrunk = (1 - SHRINKAGE) * (found + missing) + SHRINKAGE * eye
    # Cholesky without a check, which would wait for the device: a shrunk matrix is always positive definite.
    root = torch.linalg.cholesky_ex(shrunk).L
    return -2 * root.diagonal(dim1=1, dim2=2).log().sum(dim=1)


@sparse_coders.register("lse_infomax")
@dataclass(frozen=True, kw_only=True)
class LseInfomax(TrainedCoder):
    """A decoder-free encoder from implicit EM: log-sum-exp, variance and decorrelation."""

    version: ClassVar[int] = 2
    module: ClassVar = Module
    columns: ClassVar = WEIGHTS
    level_option: ClassVar = "lambda_lse"

    lambda_lse: float = 1.0
    """Weight of the log-sum-exp: more of it makes codes sparser."""
    lambda_var: float = 1.0
    """Weight of the variance term: no unit may stand still."""
    lambda_tc: float = 1.0
    """Weight of the decorrelation term: no unit may repeat another."""
    lambda_wr: float = 0.0
    """Weight of the penalty on rows of W that are not at right angles; 0: there is none."""
    variance_eps: float = 1e-6
    """Added to every unit's variance before its logarithm, or the hinge's root, is taken."""
    activation: Activation = "relu"
    """Function that makes the code a of W x + b."""
    scale: Literal["none", "unit_norm", "hinge"] = "none"
    """How W is kept from growing for ever: not at all (the paper), unit rows, or a hinge at a deviation of 1."""
    decorrelation: Literal["pairs", "logdet"] = "pairs"
    """Repetition is measured by squared correlations of pairs, or by the whole correlation matrix's determinant."""

    def check(self, d_in: int, d_code: int, batch: int) -> None:
        if self.decorrelation == "logdet" and batch < 4 * d_code:
            raise UserError(
                f"{self.label}: the determinant of a correlation matrix of {d_code} units needs a batch of at least "
                f"{4 * d_code}, not {batch}. Raise the batch, lower d_code, or use decorrelation=pairs."
            )
        if batch < 2:
            raise UserError(f"{self.label}: variances need a batch of at least 2, not {batch}.")
