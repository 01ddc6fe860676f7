"""The spec's two models: an encoder alone, and the standard sparse autoencoder it is compared with.

Attributes and weights have the original's names, so that a checkpoint of either project loads in the other.
"""

from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "identity": nn.Identity, "softplus": nn.Softplus}


class Encoder(nn.Module):
    """a, z = Encoder(784, 64)(x): activations phi(W x + b) and what they are made from."""

    def __init__(
        self, input_dim: int, hidden_dim: int, activation: Literal["relu", "identity", "softplus"] = "relu"
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"Unknown activation '{activation}': choose one of {', '.join(ACTIVATIONS)}.")
        self.input_dim, self.hidden_dim, self.activation_name = input_dim, hidden_dim, activation
        self.linear, self.activation = nn.Linear(input_dim, hidden_dim), ACTIVATIONS[activation]()

    def forward(self, x: Float[Tensor, "batch d_in"]) -> tuple[Float[Tensor, "batch K"], Float[Tensor, "batch K"]]:
        z = self.linear(x)
        return self.activation(z), z

    @property
    def W(self) -> Float[Tensor, "K d_in"]:
        return self.linear.weight

    @property
    def b(self) -> Float[Tensor, " K"]:
        return self.linear.bias

    def get_weights(self) -> Float[Tensor, "K d_in"]:
        return self.W.detach()


class StandardSAE(nn.Module):
    """recon, a = StandardSAE(784, 64)(x): a = relu(W x + b), and an untied linear decoder."""

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.input_dim, self.hidden_dim = input_dim, hidden_dim
        self.encoder = nn.Sequential(nn.Linear(input_dim, hidden_dim), nn.ReLU())
        self.decoder = nn.Linear(hidden_dim, input_dim)
        self.register_load_state_dict_pre_hook(_with_a_layer_number)  # type: ignore[no-untyped-call]

    def encode(self, x: Float[Tensor, "batch d_in"]) -> Float[Tensor, "batch K"]:
        return self.encoder(x)

    def forward(self, x: Float[Tensor, "batch d_in"]) -> tuple[Float[Tensor, "batch d_in"], Float[Tensor, "batch K"]]:
        a = self.encode(x)
        return self.decoder(a), a

    def get_encoder_weights(self) -> Float[Tensor, "K d_in"]:
        weights: Tensor = self.encoder[0].get_parameter("weight")
        return weights.detach()

    def get_decoder_weights(self) -> Float[Tensor, "d_in K"]:
        return self.decoder.weight.detach()

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())


def _with_a_layer_number(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Rename `encoder.weight` to `encoder.0.weight`, since assay's first checkpoints had no layer number."""
    for name in ("weight", "bias"):
        if f"{prefix}encoder.{name}" in state:
            state[f"{prefix}encoder.0.{name}"] = state.pop(f"{prefix}encoder.{name}")
