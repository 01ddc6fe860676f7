"""Many signatures share these shapes: tokens, one token, and what the heads make of them."""

from jaxtyping import Float
from torch import Tensor

Tokens = Float[Tensor, "batch time d_model"]
Token = Float[Tensor, "batch d_model"]
Queries = Float[Tensor, "batch heads query d"]
Keys = Float[Tensor, "batch kv_heads time d"]
Values = Float[Tensor, "batch kv_heads time e"]
Read = Float[Tensor, "batch heads time e"]
"""What every head has read, token by token."""
Memory = Float[Tensor, "batch heads f e"]
"""A matrix per head: f features of keys by e channels of values."""
