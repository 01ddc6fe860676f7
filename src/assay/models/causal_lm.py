"""Hugging Face causal language models run here with sparse attention inside them.

    model = load_model("HuggingFaceTB/SmolLM2-135M")
    with sparse(model, "h2o", sparsity=0.9) as usage:
        logits = model(ids, use_cache=False).logits
    print(usage.attended / usage.visible)          # the density that was realised

Attention goes through transformers' attention interface, so that any model that uses it can be made sparse; the
model's own mask (padding, a sliding window) is kept to. Inside `sparse_lanes` the rows of a batch are the sequences of
the first lane, then those of the second, and so on. transformers is in the extra `lm`.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from assay.attention import attention
from assay.attention.base import Budget, Method, Select
from assay.attention.checks import Numbers, numbers
from assay.attention.lanes import Lane, Usage, attend
from assay.attention.layer import Layer, Turn
from assay.core.errors import UserError
from assay.core.files import is_there
from assay.data.language_model import WEIGHTS, check_context, transformers
from assay.data.language_model import fingerprint as fingerprint
from assay.data.language_model import load_model as load_model
from assay.data.language_model import load_tokenizer as load_tokenizer

IMPLEMENTATION = "assay_sparse"
"""Name under which it is registered in transformers' attention interface."""
CHANGES_SCORES = {"softcap": "caps its scores", "s_aux": "has learned sinks", "position_bias": "adds a bias to scores"}
"""Options of the interface that change scores; methods see only queries and keys and would have to ignore them."""
PLAIN_ROTARY = ("default", "linear", "llama3")
"""Kinds of rotary positions whose frequencies do not depend on the length."""


def check_model(name: str, *, context: int, revision: str | None = None) -> None:
    """Raise UserError for what would fail or mean nothing once the model is loaded: a folder without weights, and a
    context that is longer than the model has positions for."""
    if is_there(name, folder=True) and not any(path.suffix in WEIGHTS for path in Path(name).iterdir()):
        raise UserError(f"cannot load the model '{name}': the folder has no file of weights ({', '.join(WEIGHTS)}).")
    check_context(name, context, option="--context-lengths", revision=revision)


@contextmanager
def sparse(
    model: nn.Module,
    method: str | Method,
    *,
    sparsity: float | None = None,
    slots: int | None = None,
    positions: Literal["absolute", "cache"] = "absolute",
    chunk: int = 1,
    prefix: int = 0,
    **options: Any,
) -> Iterator[Usage]:
    """Run the model with one method inside: `sparse(model, "streaming_llm", slots=256, num_sink_tokens=4)`."""
    chosen = method if isinstance(method, Method) else attention.load({"name": method} | options)
    # Without a budget the method is dense, or has its own sizes.
    budget = Budget(sparsity=0.0 if sparsity is None and slots is None else sparsity, slots=slots)
    with sparse_lanes(model, [Lane(chosen, budget, positions, chunk, prefix)]) as (usage,):
        yield usage


@contextmanager
def sparse_lanes(model: nn.Module, lanes: Sequence[Lane], *, count: bool = True) -> Iterator[list[Usage]]:
    """Let rows of a batch attend by the lane they belong to, inside the block. The model is restored on leaving, also
    after an error; a nested block takes over until it ends."""
    _register()
    if not getattr(model, "_can_set_attn_implementation", lambda: False)():
        raise UserError(f"{type(model).__name__} does not use transformers' attention interface: it cannot be changed.")
    state = State(
        tuple(lanes), [Usage() for _ in lanes], count, _rotary(model), any(map(_frequencies, model.modules()))
    )
    configs: dict[int, Any] = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    before = {key: config._attn_implementation_internal for key, config in configs.items()}
    outer = {key: _ACTIVE.get(key) for key in configs}
    # Hook the body, which runs whether or not logits are wanted.
    watch = getattr(model, "base_model", model).register_forward_hook(state.check_used)
    try:
        model.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
        _ACTIVE.update(dict.fromkeys(configs, state))
        with numbers() as state.numbers:
            yield state.usage
    finally:
        watch.remove()
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]
            if (held := outer[key]) is None:
                _ACTIVE.pop(key, None)
            else:
                _ACTIVE[key] = held


@dataclass
class State:
    """Tells the attention of a model what to do inside a block."""

    lanes: tuple[Lane, ...]
    usage: list[Usage]
    count: bool
    rotary: nn.Module | None
    """The rotary embedding, if its positions can be counted anew."""
    rotates: bool
    """Whether the model has rotary positions of any kind."""
    layers: set[int] = field(default_factory=set)
    """Indices of the layers that called the attention function."""
    numbers: Numbers = field(default_factory=Numbers)

    def check_used(self, model: nn.Module, *_: Any) -> None:
        """Raise, after a forward pass, if scores were NaN or no layer called the attention function."""
        self.numbers.raise_for_none()
        if not self.layers:
            raise UserError(f"no layer of {type(model).__name__} asked for attention: it has an attention of its own.")

    def turn(self, module: nn.Module) -> Turn | None:
        """Return a function that rotates queries further, by the model's own rotary embedding."""
        apply = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
        rotary = self.rotary
        if rotary is None or apply is None:
            return _not_known if self.rotates else None

        # Local and global layers may have rotary positions each of their own, as those of Gemma 3.
        own = isinstance(rotary.rope_type, dict)
        config: Any = module.config
        kind = [config.layer_types[module.layer_idx]] if own else []
        scaling = getattr(rotary, f"{kind[0]}_attention_scaling" if own else "attention_scaling")

        def turned(q: Tensor, positions: Tensor) -> Tensor:
            cos, sin = rotary(q, positions, *kind)
            if cos.shape[-1] != q.shape[-1]:
                raise UserError("positions cannot be counted anew: this model rotates only part of its channels.")
            return apply(q, q, cos / scaling, sin / scaling)[0]

        return turned


_ACTIVE: dict[int, State] = {}
"""State by the id of the config that an attention module holds."""


def _register() -> None:
    """Register with transformers at the first use."""
    library = transformers()
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    library.AttentionInterface.register(IMPLEMENTATION, sparse_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def sparse_attention(
    module: nn.Module,
    query: Float[Tensor, "rows heads time d"],
    key: Float[Tensor, "rows kv_heads key d"],
    value: Float[Tensor, "rows kv_heads key e"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "rows time heads e"], None]:
    """Compute attention in place of transformers' own."""
    state = _ACTIVE.get(id(module.config))
    if state is None:
        raise UserError(f"'{IMPLEMENTATION}' is for use inside `with sparse(model, ...)`.")
    if query.shape[2] != key.shape[2]:
        raise UserError("sparse attention scores whole sequences: call the model with use_cache=False.")
    for option, what in CHANGES_SCORES.items():
        if options.get(option) is not None:
            raise UserError(f"{type(module).__name__} {what}: attention methods do not know that.")
    if not options.get("is_causal", getattr(module, "is_causal", True)):
        raise UserError(f"{type(module).__name__} is not causal attention.")
    index = int(module.layer_idx)  # type: ignore[arg-type]
    state.layers.add(index)
    mask, config = _mask(attention_mask, len(query)), module.config
    layers = int(getattr(config, "num_hidden_layers", 1))
    layer = Layer(query, key, value, mask, index, scaling, layers, state.turn(module))
    _check_padding(state.lanes, layer)
    output = attend(state.lanes, layer, usage=state.usage if state.count else None)
    return rearrange(output, "r h t e -> r t h e").contiguous(), None


def _check_padding(lanes: Sequence[Lane], layer: Layer) -> None:
    """Raise UserError for a sparsity with padded rows: it is a share of a sequence's length, which is not that of a row
    with padding in front. Methods that select take their share of what each query sees."""
    shares = [lane for lane in lanes if lane.budget.sparsity and not isinstance(lane.method, Select)]
    if shares and layer.mask is not None and layer.start.any():
        raise UserError(
            f"{shares[0].method.label}: a sparsity is a share of a sequence's length, and these sequences are padded "
            "in front. Give slots instead."
        )


def _mask(given: Tensor | None, rows: int) -> Bool[Tensor, "rows query key"] | None:
    """Return the model's own mask as booleans."""
    if given is None:
        return None
    if given.dtype != torch.bool:
        hidden = given <= torch.finfo(given.dtype).min / 2
        if bool((given.masked_fill(hidden, 0.0) != 0).any()):
            raise UserError("the model adds a bias to its scores: attention methods do not know that.")
        given = ~hidden
    if given.shape[1] != 1:
        raise UserError("the model has a mask for each head: attention methods know one for all.")
    return given[:, 0].expand(rows, -1, -1)


def _not_known(q: Tensor, positions: Tensor) -> Tensor:
    raise UserError(f"positions can be counted anew for rotary positions of the kinds {', '.join(PLAIN_ROTARY)} alone.")


def _rotary(model: nn.Module) -> nn.Module | None:
    """Return the rotary embedding, if one module with constant frequencies serves all layers."""
    found = [part for part in model.modules() if _frequencies(part)]
    kinds = {kind for part in found for kind in _frequencies(part)}
    return found[0] if len(found) == 1 and kinds <= set(PLAIN_ROTARY) else None


def _frequencies(part: nn.Module) -> tuple[str, ...]:
    """The kinds of rotary positions that a module gives, one or one for each kind of layer."""
    kind: Any = getattr(part, "rope_type", "default" if hasattr(part, "inv_freq") else None)
    if isinstance(kind, dict):
        return tuple(kind.values())
    return (kind,) if kind and hasattr(part, "attention_scaling") else ()
