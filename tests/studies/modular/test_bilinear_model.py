"""The bilinear model, and the four units that are enough."""

import math

import pytest
import torch

from assay.core.errors import UserError
from assay.studies.modular.bilinear import Bilinear, addition_table, constructive_model, init_model, one_hot


def test_a_bilinear_layer_multiplies_the_two_halves_of_one_map() -> None:
    layer, x = Bilinear(6, 3), torch.randn(5, 6)
    torch.testing.assert_close(layer(x), (x @ layer.w_l.T) * (x @ layer.w_r.T))
    assert layer.weight.shape == (6, 6) and layer.bias is None


def test_a_model_has_the_names_and_shapes_of_saved_sweeps() -> None:
    shapes = {name: tuple(weight.shape) for name, weight in init_model(p=7, d_hidden=3).state_dict().items()}
    assert shapes == {"bi_linear.weight": (6, 14), "projection.weight": (7, 3)}
    assert init_model(p=7).w_p.shape == (7, 7), "as wide as the modulus unless told"


def test_the_logits_are_those_of_the_interaction_tensor() -> None:
    model = init_model(5, 3).double()
    a, b, _ = addition_table(5)
    x = one_hot(a, b, 5).double()
    interaction = torch.einsum("hi,hj,ph->pij", model.w_l, model.w_r, model.w_p)
    torch.testing.assert_close(model(x), torch.einsum("ni,pij,nj->np", x, interaction, x))


@pytest.mark.parametrize("P", [2, 3, 4, 7, 12, 59, 64, 113])
def test_four_units_solve_addition(P: int) -> None:
    model = constructive_model(P)
    a, b, target = addition_table(P)
    logits = model(one_hot(a, b, P))
    assert model.w_l.shape == (4, 2 * P)
    assert (logits.argmax(dim=1) == target).all()
    best = logits.topk(2, dim=1).values
    margin = (best[:, 0] - best[:, 1]).min().item()
    assert margin == pytest.approx(1 - math.cos(2 * math.pi / P), rel=1e-2)


@pytest.mark.parametrize("sizes", [(1, 3), (7, 0)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(UserError, match="P="):
        init_model(*sizes)
