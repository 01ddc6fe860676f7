"""Attention of a Hugging Face model is computed by a function of ours inside a block.

    with taking_over(model, attend):        # attend(module, q, k, v, mask, scale=, cap=, sinks=) -> output
        model(ids, use_cache=False)

Most models ask transformers' attention interface, under a name that is registered here. Those that call torch's
scaled_dot_product_attention themselves (Falcon) are caught there. Others cannot be changed, and are refused.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from assay.core.errors import UserError
from assay.data.language_model import transformers

IMPLEMENTATION = "assay_sparse"
"""Name under which it is registered in transformers' attention interface."""
Attend = Callable[..., Float[Tensor, "rows heads time e"]]

_ACTIVE: dict[int, Attend] = {}
"""The function in charge, by the id of the config that an attention module holds."""


@contextmanager
def taking_over(model: nn.Module, attend: Attend) -> Iterator[None]:
    """Let `attend` compute the model's attention inside the block. The model is restored on leaving, also after an
    error; a nested block takes over until it ends."""
    asks = getattr(model, "_can_set_attn_implementation", lambda: False)()
    if not (asks or getattr(model, "_supports_sdpa", False)):
        name = type(model).__name__
        raise UserError(f"{name} does not use transformers' attention interface: it cannot be changed.")
    configs: dict[int, Any] = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    before = {key: config._attn_implementation_internal for key, config in configs.items()}
    outer = {key: _ACTIVE.get(key) for key in configs}
    try:
        _register()
        if asks:
            model.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
        else:
            for config in configs.values():
                config._attn_implementation_internal = "sdpa"
        _ACTIVE.update(dict.fromkeys(configs, attend))
        with nullcontext() if asks else caught(model, attend):
            yield
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]
            if (held := outer[key]) is None:
                _ACTIVE.pop(key, None)
            else:
                _ACTIVE[key] = held


def _register() -> None:
    """Register with transformers at the first use."""
    library = transformers()
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    library.AttentionInterface.register(IMPLEMENTATION, interface)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def interface(
    module: nn.Module,
    query: Float[Tensor, "rows heads time d"],
    key: Float[Tensor, "rows kv_heads key d"],
    value: Float[Tensor, "rows kv_heads key e"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "rows time heads e"], None]:
    """Compute attention in place of transformers' own. Arguments are in the order of its functions, which other
    packages that wrap them rely on."""
    attend = _ACTIVE.get(id(module.config))
    if attend is None:
        raise UserError(f"'{IMPLEMENTATION}' is for use inside `with sparse(model, ...)`.")
    if options.get("position_bias") is not None:
        raise UserError(f"{type(module).__name__} adds a bias to scores: attention methods do not know that.")
    if not options.get("is_causal", getattr(module, "is_causal", True)):
        raise UserError(f"{type(module).__name__} is not causal attention.")
    changes = {"cap": options.get("softcap"), "sinks": options.get("s_aux")}
    output = attend(module, query, key, value, attention_mask, scale=scaling, **changes)
    return rearrange(output, "r h t e -> r t h e").contiguous(), None


@contextmanager
def caught(model: nn.Module, attend: Attend) -> Iterator[None]:
    """Catch the calls of scaled_dot_product_attention that attention layers make, which hooks tell apart."""
    layers = [part for part in model.modules() if hasattr(part, "layer_idx") and hasattr(part, "is_causal")]
    catching = Catching(attend)
    with ExitStack() as hooks, catching:
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(lambda module, _: catching.inside.append(module)))
            hooks.enter_context(layer.register_forward_hook(lambda *_: catching.inside.clear(), always_call=True))
        yield


class Catching(TorchFunctionMode):
    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend, self.inside = attend, list[nn.Module]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called = self.called if func is scaled_dot_product_attention and self.inside else func
        return called(*args, **(kwargs or {}))

    def called(
        self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, scale: float | None = None, **flags: Any
    ) -> Tensor:
        module = self.inside[-1]
        if attn_mask is None and not flags.get("is_causal") and q.shape[2] > 1:
            raise UserError(f"{type(module).__name__} is not causal attention.")
        # Falcon repeats its keys for every query head that shares them.
        repeated = k.shape[1] // int(getattr(module, "num_kv_heads", k.shape[1]))
        return self.attend(module, q, k[:, ::repeated], v[:, ::repeated], attn_mask, scale=scale)


def own_mask(given: Tensor | None, rows: int) -> Bool[Tensor, "rows query key"] | None:
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
