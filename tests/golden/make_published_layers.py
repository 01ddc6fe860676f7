r"""Write published_layers.safetensors: whole layers of other people's code, their weights and what they make of tokens.

    pip install --no-deps --target /tmp/layers fla-core==0.6.0 flash-linear-attention==0.6.0 xlstm==2.0.5 \
        triton==3.6.0 numpy==2.2.6
    TRITON_INTERPRET=1 PYTHONPATH=/tmp/layers python tests/golden/make_published_layers.py

flash-linear-attention's kernels run on a CPU by Triton's interpreter, which numpy 2.4 breaks; tuning, which needs a
GPU, takes the first configuration. The mLSTM is its authors' layer, in plain PyTorch. Mamba-2 is the plain PyTorch path
of transformers: fla's needs kernels of others.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

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
    for word, layer in (layers() | newer_layers()).items():
        layer.eval()
        for parameter in layer.parameters():  # gains, biases and rates too: what all start at would prove nothing
            parameter.copy_(parameter + 0.3 * torch.randn(parameter.shape, generator=rng))
        y = layer.forward_reference(x) if hasattr(layer, "forward_reference") else layer(x)
        tensors[f"{word}/y"] = (y[0] if isinstance(y, tuple) else y).contiguous()
        tensors |= {f"{word}/{name}": weight.contiguous() for name, weight in layer.named_parameters()}
    target = Path(__file__).with_name("published_layers.safetensors")
    save_file(tensors, target, {"peers": "flash-linear-attention 0.6.0; transformers 5.22.2; xlstm 2.0.5"})


if __name__ == "__main__":
    main()
