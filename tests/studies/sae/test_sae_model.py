"""The spec's models (its tests/test_model.py)."""

import pytest
import torch

from assay.studies.sae import Encoder, StandardSAE


class TestEncoder:
    def test_shapes_and_parameters(self) -> None:
        model = Encoder(784, 64, activation="relu")
        a, z = model(torch.rand(10, 784))
        assert a.shape == z.shape == (10, 64) and model.W.shape == (64, 784) and model.b.shape == (64,)
        assert sum(p.numel() for p in model.parameters()) == 50_240

    @pytest.mark.parametrize("activation", ["relu", "identity", "softplus"])
    def test_activation_is_applied_to_the_preactivations(self, activation) -> None:
        a, z = Encoder(5, 3, activation=activation)(torch.randn(7, 5))
        by_hand = {"relu": z.clamp(min=0), "identity": z, "softplus": torch.log1p(z.exp())}[activation]
        torch.testing.assert_close(a, by_hand)

    def test_gradients_reach_weights_and_bias(self) -> None:
        model = Encoder(5, 3)
        model(torch.randn(7, 5))[0].sum().backward()
        assert model.W.grad.abs().sum() > 0 and model.b.grad.abs().sum() > 0

    def test_weights_are_live_and_a_copy_of_them_is_not(self) -> None:
        model = Encoder(5, 3)
        assert model.W.requires_grad and not model.get_weights().requires_grad
        with torch.no_grad():
            model.W.zero_()
        assert model(torch.ones(1, 5))[1].tolist() == [model.b.tolist()]

    def test_an_unknown_activation_is_a_value_error(self) -> None:
        with pytest.raises(ValueError, match="gelu"):
            Encoder(5, 3, activation="gelu")


class TestStandardSAE:
    def test_shapes_and_parameters(self) -> None:
        model = StandardSAE(784, 64)
        recon, a = model(torch.rand(10, 784))
        assert recon.shape == (10, 784) and a.shape == (10, 64) and (a >= 0).all()
        assert model.parameter_count() == 101_200
        assert model.get_encoder_weights().shape == (64, 784) and model.get_decoder_weights().shape == (784, 64)
        assert torch.equal(model.encode(torch.zeros(1, 784)), model(torch.zeros(1, 784))[1])
