r"""Write published_layers.safetensors: whole layers of other people's code, their weights and what they make of tokens.

    pip install --no-deps --target /tmp/layers fla-core==0.6.0 flash-linear-attention==0.6.0 xlstm==2.0.5 \
        triton==3.6.0 numpy==2.2.6
    cd /tmp/layers && mkdir -p zoology/mixers && R=https://raw.githubusercontent.com/HazyResearch
    curl -O $R/safari/07fba792f211f6948faffe9d3560a3c64db2a2d8/standalone_hyena.py && cd zoology/mixers
    Z=$R/zoology/cd850106445ba273ac2161eed6f54c1467861071/zoology/mixers && curl -O $Z/base_conv.py -O $Z/convolution.py
    TRITON_INTERPRET=1 PYTHONPATH=/tmp/layers python tests/golden/make_published_layers.py    # at the repository's root

flash-linear-attention's kernels run on a CPU by Triton's interpreter, which numpy 2.4 breaks; tuning, which needs a
GPU, takes the first configuration. The mLSTM is its authors' layer, in plain PyTorch. Mamba-2 is the plain PyTorch path
of transformers: fla's needs kernels of others. Attention is transformers' of Llama, the window that of Mistral.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from triton.runtime.autotuner import Autotuner

D_MODEL, TIME, HEADS = 16, 12, 2
CONSTRUCT = Autotuner.__init__


def untuned(self, *args, **kwargs) -> None:  # type: ignore[no-untyped-def]
    CONSTRUCT(self, *args, **kwargs)
    self.configs = self.configs[:1]


def layers() -> dict[str, nn.Module]:
    from fla.layers.based import BasedLinearAttention
    from fla.layers.delta_net import DeltaNet
    from fla.layers.gated_deltanet import GatedDeltaNet
    from fla.layers.gla import GatedLinearAttention
    from fla.layers.linear_attn import LinearAttention
    from fla.layers.multiscale_retention import MultiScaleRetention
    from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    sizes = {"hidden_size": D_MODEL, "num_heads": HEADS}
    mamba = Mamba2Config(
        hidden_size=D_MODEL, num_heads=4, head_dim=8, expand=2, state_size=6, n_groups=1, num_hidden_layers=1,
        layer_norm_epsilon=1e-5, use_bias=False, use_conv_bias=True, chunk_size=8,
    )  # fmt: skip
    return {
        "gated_linear_attn": GatedLinearAttention(**sizes),
        "gated_linear_attn:conv=4": GatedLinearAttention(**sizes, use_short_conv=True),
        "retention:num_heads=2": MultiScaleRetention(**sizes),
        "retention:num_heads=2:conv=4": MultiScaleRetention(**sizes, use_short_conv=True),
        "delta_net:num_heads=2": DeltaNet(**sizes),
        "delta_net:num_heads=2:conv=0:beta_max=2": DeltaNet(**sizes, use_short_conv=False, allow_neg_eigval=True),
        "gated_delta_net:num_heads=2": GatedDeltaNet(**sizes, head_dim=8),
        "gated_delta_net:num_heads=2:use_gate=False": GatedDeltaNet(**sizes, head_dim=8, use_gate=False),
        "linear_attention:num_heads=2": LinearAttention(**sizes, mode="fused_recurrent"),
        "based:feature_dim=4": BasedLinearAttention(D_MODEL, feature_dim=4, num_heads=1, num_key_value_heads=1),
        "mamba2:num_heads=4:d_state=6": Mamba2Mixer(mamba, layer_idx=0),
    }


def newer_layers() -> dict[str, nn.Module]:
    from fla.layers import mesa_net
    from fla.layers.gated_deltaproduct import GatedDeltaProduct
    from fla.layers.kda import KimiDeltaAttention
    from fla.layers.rwkv7 import RWKV7Attention
    from fla.modules.l2norm import l2_norm
    from fla.ops.mesa_net.naive import naive_mesa_net_exact

    def exactly(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, lamb: Tensor, **_: object) -> tuple:
        return naive_mesa_net_exact(l2_norm(q), l2_norm(k), v, g, lamb, beta)

    mesa_net.chunk_mesa_net = exactly  # the interpreter cannot run the kernel; this is the authors' oracle of it
    sizes = {"hidden_size": D_MODEL, "num_heads": HEADS, "head_dim": D_MODEL // HEADS}
    return {
        "kda:num_heads=2": KimiDeltaAttention(**sizes),
        "kda:num_heads=2:conv=0:beta_max=2": KimiDeltaAttention(**sizes, use_short_conv=False, allow_neg_eigval=True),
        "delta_product:num_heads=2": GatedDeltaProduct(**sizes),
        "delta_product:num_heads=2:num_householder=3:forget=False:beta_max=1": GatedDeltaProduct(
            **sizes, num_householder=3, use_forget_gate=False, allow_neg_eigval=False
        ),
        "mesa:num_heads=2": mesa_net.MesaNet(**sizes),
        "rwkv7:num_heads=2": RWKV7Attention(**sizes, layer_idx=0, num_hidden_layers=2),
        "mlstm:num_heads=2:expand=4": mlstm_layer(),
    }


class Attention(nn.Module):
    """A layer of transformers in its plain form, with the mask that transformers makes for its model."""

    def __init__(self, *, kv_heads: int = HEADS, rotary: bool = False, window: int | None = None) -> None:
        from transformers import LlamaConfig, MistralConfig
        from transformers.models.llama import modeling_llama
        from transformers.models.mistral import modeling_mistral

        super().__init__()
        sizes = {"hidden_size": D_MODEL, "num_attention_heads": HEADS, "num_key_value_heads": kv_heads}
        plain = {**sizes, "attn_implementation": "eager", "num_hidden_layers": 1}
        if window is None:
            self.config = LlamaConfig(**plain)
            self.layer = modeling_llama.LlamaAttention(self.config, layer_idx=0)
        else:
            self.config = MistralConfig(**plain, sliding_window=window)
            self.layer = modeling_mistral.MistralAttention(self.config, layer_idx=0)
        self.angles = modeling_llama.LlamaRotaryEmbedding(self.config) if rotary else None

    def forward(self, x: Tensor) -> Tensor:
        from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

        masked = create_causal_mask if self.config.model_type == "llama" else create_sliding_window_causal_mask
        places = torch.arange(x.shape[1])[None]
        mask = masked(
            config=self.config, inputs_embeds=x, attention_mask=None, past_key_values=None, position_ids=places
        )
        still = torch.ones(1, x.shape[1], D_MODEL // HEADS)
        turns = self.angles(x, places) if self.angles else (still, 0 * still)
        return self.layer(x, position_embeddings=turns, attention_mask=mask)[0]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.layer.named_parameters(*args, **kwargs)


def older_layers() -> dict[str, nn.Module]:
    from standalone_hyena import HyenaOperator
    from zoology.mixers.base_conv import BaseConv

    return {
        "attention:num_heads=2": Attention(),
        "attention:num_heads=2:num_kv_heads=1:positions=rotary": Attention(kv_heads=1, rotary=True),
        "sliding_window:num_heads=2:window=4": Attention(window=4),
        "sliding_window:num_heads=2:window=4:positions=rotary": Attention(window=4, rotary=True),
        "base_conv": BaseConv(D_MODEL, TIME),
        "hyena:filter_order=8": HyenaOperator(D_MODEL, TIME, filter_order=8),
    }


def mlstm_layer() -> nn.Module:
    """The authors' layer, without the rest of their package, which imports what this file does not need."""
    (root,) = importlib.util.find_spec("xlstm").submodule_search_locations  # type: ignore[union-attr, misc]
    for name in ("xlstm", "xlstm.blocks", "xlstm.blocks.mlstm", "xlstm.components"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(Path(root).joinpath(*name.split(".")[1:]))]
    layer = importlib.import_module("xlstm.blocks.mlstm.layer")
    return layer.mLSTMLayer(layer.mLSTMLayerConfig(embedding_dim=D_MODEL, context_length=TIME, num_heads=HEADS))


@torch.no_grad()
def main() -> None:
    Autotuner.__init__ = untuned  # type: ignore[method-assign]
    torch.manual_seed(0)  # the layers draw their weights from the global generator
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(2, TIME, D_MODEL, generator=rng)
    tensors: dict[str, Tensor] = {"x": x}
    for word, layer in (layers() | newer_layers() | older_layers()).items():
        layer.eval()
        weights = {name: weight for name, weight in layer.named_parameters() if "pos_emb" not in name}
        for weight in weights.values():  # gains, biases and rates too: what all start at would prove nothing
            weight.copy_(weight + 0.3 * torch.randn(weight.shape, generator=rng))
        y = layer.forward_reference(x) if hasattr(layer, "forward_reference") else layer(x)
        tensors[f"{word}/y"] = (y[0] if isinstance(y, tuple) else y).contiguous()
        tensors |= {f"{word}/{name}": weight.contiguous() for name, weight in weights.items()}
    target = Path(__file__).with_name("published_layers.safetensors")
    peers = "flash-linear-attention 0.6.0; transformers 5.23.0; xlstm 2.0.5; safari 07fba792; zoology cd850106"
    save_file(tensors, target, {"peers": peers})


if __name__ == "__main__":
    main()
