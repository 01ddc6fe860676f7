"""The spec's two models: an encoder alone, and the standard sparse autoencoder it is compared with."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import relu, softplus

ACTIVATIONS = {"relu": relu, "identity": lambda z: z, "softplus": softplus}


class Encoder(nn.Module):
    """a, z = Encoder(784, 64)(x): activations phi(W x + b) and what they are made from."""

    def __init__(
        self, input_dim: int, hidden_dim: int, activation: Literal["relu", "identity", "softplus"] = "relu"
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation '{activation}': choose one of {', '.join(ACTIVATIONS)}.")
        self.input_dim, self.hidden_dim, self.activation = input_dim, hidden_dim, activation
        self.linear = nn.Linear(input_dim, hidden_dim)

    def forward(self, x: Float[Tensor, "batch d_in"]) -> tuple[Float[Tensor, "batch K"], Float[Tensor, "batch K"]]:
        z = self.linear(x)
        return ACTIVATIONS[self.activation](z), z

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
        self.encoder, self.decoder = nn.Linear(input_dim, hidden_dim), nn.Linear(hidden_dim, input_dim)

    def encode(self, x: Float[Tensor, "batch d_in"]) -> Float[Tensor, "batch K"]:
        return torch.relu(self.encoder(x))

    def forward(self, x: Float[Tensor, "batch d_in"]) -> tuple[Float[Tensor, "batch d_in"], Float[Tensor, "batch K"]]:
        a = self.encode(x)
        return self.decoder(a), a

    def get_encoder_weights(self) -> Float[Tensor, "K d_in"]:
        return self.encoder.weight.detach()

    def get_decoder_weights(self) -> Float[Tensor, "d_in K"]:
        return self.decoder.weight.detach()

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())
