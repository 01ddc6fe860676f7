"""Attention over heads: its projections, softmax attention in a window, and linear attention in chunks are here."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention, silu

from assay.nn.axes import Keys, Memory, Queries, Read, Token, Tokens, Values
from assay.nn.convolution import short_convolution
from assay.nn.fused import WINDOWED, Part, Plan, fused, head_kernels, rotary_kernels, window_kernels
from assay.nn.joint import joint
from assay.nn.rotary import rotate
from assay.nn.scan import unit
from assay.nn.whole import whole

One = Float[Tensor, "batch heads 1 _"]
Finish = Literal["none", "scaled", "unit", "rotary"]
InHeads = tuple[
    Float[Tensor, "batch heads rows d"], Float[Tensor, "batch kv_heads rows d"], Float[Tensor, "batch kv_heads rows e"]
]
"""Queries, keys and values; a row is a token, or one of its steps."""


class HeadProjections(nn.Module):
    """Maps tokens to queries, keys and values per head, and heads back to tokens; no bias.

    One matrix gives all three, so that a GPU starts one kernel. Weights start as torch starts a linear layer, here and
    in the state mixers: with the .02 of language models the default run needs 1.5 times as many steps to 98 %.

    `conv` is the kernel of a short convolution on queries, keys and values, 0: none; `swish` applies a SiLU after it.
    `finish` is what recurrences then do to queries and keys: "scaled" divides queries by sqrt(d); "unit" does so after
    giving both the length 1, and "rotary" before turning both by their positions.

    A token of several `steps` has heads of keys and values for each, and becomes as many tokens of the heads: queries,
    keys and values are (batch, heads, time steps, d), and queries are zeros but at the last step, which reads.
    """

    def __init__(
        self,
        d_model: int,
        *,
        heads: int,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        conv: int = 0,
        swish: bool = False,
        finish: Finish = "none",
        steps: int = 1,
    ) -> None:
        super().__init__()
        self.finish: Finish = finish
        self.steps = steps
        self.heads, self.kv_heads, self.key_dim, self.value_dim = heads, kv_heads, key_dim, value_dim
        self.sizes = [heads * key_dim, kv_heads * key_dim, kv_heads * value_dim]
        self.qkv = nn.Linear(d_model, sum(self.sizes), bias=False)
        self.convolution, self.swish = short_convolution(sum(self.sizes), conv), swish
        self.out = nn.Linear(heads * value_dim, d_model, bias=False)

    def split(self, x: Tokens) -> InHeads:
        return self.split_beside(x, ())[0]

    def split_beside(self, x: Tokens, beside: Sequence[nn.Linear]) -> tuple[InHeads, Sequence[Tensor]]:
        """Return queries, keys and values, and what small layers without a bias make of the same tokens."""
        if not (fused("heads") and (self.finish != "none" or self.swish)):
            return self._in_heads(self.convolution(self.qkv(x))), [layer(x) for layer in beside]
        own: dict[str, Any] = {"finish": self.finish, "scale": 1.0 if self.finish == "none" else self.key_dim**-0.5}
        if not (beside and fused("projection")):
            q, k, v, _ = self._in_heads_fused(self.qkv(x), **own)
            return (q, k, v), [layer(x) for layer in beside]
        projected, missing = joint(x, self.qkv.weight, *(layer.weight for layer in beside))
        q, k, v, rest = self._in_heads_fused(projected, **own, filling=missing)
        return (q, k, v), rest.split([layer.out_features for layer in beside], dim=-1)

    def split_turned(self, x: Tokens) -> InHeads:
        """Return the heads for softmax attention, which scales by itself, with queries and keys turned by position."""
        if fused("heads"):
            q, k, v, _ = self._in_heads_fused(self.qkv(x), finish="rotary", scale=1.0)
            return q, k, v
        q, k, v = self.split(x)
        return rotate(q), rotate(k), v

    def _in_heads_fused(
        self, projected: Float[Tensor, "batch time channels"], *, finish: Finish, scale: float, filling: int = 0
    ) -> list[Tensor]:
        """Return queries, keys and values by one kernel each, and the channels after theirs but those that fill up."""
        kinds = {"unit": finish == "unit", "rotary": finish == "rotary"}
        queries, keys, _ = self.sizes
        parts = (
            Part(0, self.heads, self.key_dim, **kinds, scale=scale, steps=self.steps, last=self.steps > 1),
            Part(queries, self.kv_heads, self.key_dim, **kinds, steps=self.steps),
            Part(queries + keys, self.kv_heads, self.value_dim, steps=self.steps),
        )
        angles = None
        if finish == "rotary":
            angles = rotary_kernels.angles(projected.shape[1], self.key_dim, projected.device)
        weight, bias = self.convolution.weight, self.convolution.bias
        return head_kernels.heads(projected, weight, bias, angles, Plan(parts, self.swish, filling))

    def split_next(self, x: Token, seen: Any) -> tuple[InHeads, Any]:
        """Return the heads of one token, as a sequence of its steps, and what the convolution has seen after it."""
        y, seen = self.convolution.step(self.qkv(x), seen)
        return self._in_heads(y[:, None]), seen

    def _in_heads(self, y: Float[Tensor, "batch time qkv"]) -> InHeads:
        y = silu(y) if self.swish else y
        parts = zip(y.split(self.sizes, dim=-1), (self.heads, self.kv_heads, self.kv_heads), strict=True)
        q, k, v = (rearrange(part, "b t (h d) -> b h t d", h=heads) for part, heads in parts)
        scale = self.key_dim**-0.5
        match self.finish:
            case "none":
                pass
            case "scaled":
                q = q * scale
            case "unit":
                q, k = unit(q) * scale, unit(k)
            case "rotary":
                q, k = rotate(q * scale), rotate(k)
        if self.steps == 1:
            return q, k, v
        k, v = (rearrange(part, "b (n h) t d -> b h (t n) d", n=self.steps) for part in (k, v))
        q = pad(q[..., None, :], (0, 0, self.steps - 1, 0))
        return rearrange(q, "b h t n d -> b h (t n) d"), k, v

    def merge(self, o: Read) -> Tokens:
        return self.out(rearrange(o, "b h t e -> b t (h e)"))

    def empty_cache(self, batch: int) -> tuple[Float[Tensor, "batch heads 0 d"], Float[Tensor, "batch heads 0 e"]]:
        """Return keys and values of no tokens."""
        weight, shape = self.out.weight, (batch, self.kv_heads, 0)
        return weight.new_zeros(*shape, self.key_dim), weight.new_zeros(*shape, self.value_dim)


def head_dim(width: int, heads: int) -> int:
    """Return channels per head; widths that heads do not divide are allowed, to meet a parameter budget."""
    return max(1, width // heads)


def causal_attention(q: Queries, k: Keys, v: Values) -> Float[Tensor, "batch heads query e"]:
    """Return softmax(q k^T / sqrt(d)) v over the past and the present; query heads share keys in groups. A query alone
    is the last one, and sees every key."""
    k, v = (_for_each_query_head(x, q.shape[1]) for x in (k, v))
    return whole(_attention, _attention_of_models, q, k, v)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    # On a CPU the fused kernel leaves prefixes the same bits, and takes .4-.7 of the time of the written-out form.
    return scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] == k.shape[2])


def _attention_of_models(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Take models times sequences as one batch, under vmap."""
    return _attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)).unflatten(0, q.shape[:2])


def window_attention(q: Queries, k: Keys, v: Values, *, window: int, rotary: bool = False) -> Read:
    """Return `causal_attention` to the last `window` tokens, the present one included, at a cost of 2 window per token.

    Time is cut into blocks of `window`: a block's queries see that block and the one before, and nothing earlier.
    """
    time = q.shape[2]
    size = min(window, time)
    k, v = (_for_each_query_head(x, q.shape[1]) for x in (k, v))
    if fused("window") and max(q.shape[-1], v.shape[-1]) <= WINDOWED:
        q, k = (rotate(q), rotate(k)) if rotary else (q, k)
        return window_kernels.attention_in_window(q, k, v, window=size)
    q, k, v = (rearrange(pad(x, (0, 0, 0, -time % size)), "b h (n c) d -> b h n c d", c=size) for x in (q, k, v))
    k, v = (torch.cat([pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x], dim=3) for x in (k, v))
    if rotary:  # positions count from the start of the pair of blocks: only distances matter
        q, k = rotate(q, start=size), rotate(k)
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    hidden = ~_in_window(q.shape[2], size, window, q.device)
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    return rearrange(weights @ v, "b h n c e -> b h (n c) e")[:, :, :time]


def _itself(x: Tensor) -> Tensor:
    return x


def linear_attention(
    q: Queries,
    k: Float[Tensor, "batch heads time d"],
    v: Read,
    *,
    kernel: Callable[[Tensor], Tensor] = _itself,
    features: Callable[[Tensor], Tensor] = _itself,
    chunk: int = 64,
) -> Read:
    """Return o_t = sum_{s <= t} kernel(q_t . k_s) v_s, where kernel(q . k) = features(q) . features(k), the dot product
    itself if not given. In chunks: the kernel is applied within one, and between them the sum of features(k) v^T is
    carried.
    """
    time = q.shape[2]
    size = min(chunk, time)
    q, k, v = (rearrange(pad(x, (0, 0, 0, -time % size)), "b h (n c) d -> b h n c d", c=size) for x in (q, k, v))
    o = torch.tril(kernel(q @ k.mT)) @ v
    if time > size:
        written = pad(features(k[:, :, :-1]).mT @ v[:, :, :-1], (0, 0, 0, 0, 1, 0))
        # Summed in float32 at least: in bf16 a long sum stops growing.
        wide = torch.promote_types(q.dtype, torch.float32)
        o = o + features(q) @ written.cumsum(dim=2, dtype=wide).to(q.dtype)
    return rearrange(o, "b h n c e -> b h (n c) e")[:, :, :time]


def linear_attention_step(q: One, k: One, v: One, carried: Memory) -> tuple[One, Memory]:
    """Process one token of `linear_attention`: S <- S + k v^T, o = S^T q."""
    carried = carried + k.mT * v
    return q @ carried, carried


def with_ones(v: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch e_and_1"]:
    """Append a channel of ones to values: linear attention turns it into the sum of its weights, the denominator."""
    return torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)


def divided(o: Float[Tensor, "*batch e_and_1"], *, floor: float = 1e-6) -> Float[Tensor, "*batch e"]:
    """Divide outputs of `with_ones` values by their last channel, the denominator."""
    return o[..., :-1] / (o[..., -1:] + floor)


def _for_each_query_head(x: Float[Tensor, "batch kv_heads time d"], heads: int) -> Float[Tensor, "batch heads time d"]:
    group = heads // x.shape[1]
    return repeat(x, "b h t d -> b (h g) t d", g=group) if group > 1 else x


def _in_window(blocks: int, size: int, window: int, device: torch.device) -> Bool[Tensor, "blocks query key"]:
    """Return which keys, of a block and the one before, each query of the block may see."""
    query = torch.arange(size, 2 * size, device=device)[:, None]
    key = torch.arange(2 * size, device=device)
    near = (key <= query) & (query - key < window)
    exists = torch.arange(blocks, device=device)[:, None, None] * size + key >= size
    return near & exists
