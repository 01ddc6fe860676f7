"""What a module of the tiny language model puts out in a plain forward pass: what data sets are compared with."""

import torch

from assay.data import named


def plain_rows(ids: torch.Tensor, layer: int = 0) -> torch.Tensor:
    """The raw rows of a layer, without the first token of each sequence."""
    seen: list[torch.Tensor] = []
    model = named.shared_model("tiny")
    handle = model.model.layers[layer].register_forward_hook(
        lambda module, given, out: seen.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        model(ids)
    handle.remove()
    return seen[0][:, 1:].flatten(0, 1)
