"""A coder that was trained on a model's activations, exported, works on what the model itself puts out."""

from pathlib import Path

import pytest
import torch

from assay.core.store import Store
from assay.core.study import Context
from assay.data import named
from assay.metrics.sparsity import fraction_unexplained
from assay.studies.sae import load_saelens, save_saelens
from assay.studies.sae.sae import Sae, parsed
from assay.studies.sae.weights import saved_module
from assay.vectors import activations


@pytest.mark.parametrize("word", ["topk:k=4", "relu_l1:form=spec", "gated"])
def test_a_coder_trained_on_activations_is_exported_for_the_models_own_outputs(
    word: str, tiny: activations.Activations, tmp_path: Path
) -> None:
    study = Sae(data=tiny, coders=parsed([word]), d_code=24, epochs=2, batch=64, lrs=(1e-3,), seeds=(0,))
    (outcome,) = study.execute(study.plan(), Context())
    module = saved_module(Store(tmp_path / "results").commit(outcome))
    with torch.no_grad():
        plain = named.shared_model("tiny").model(tiny.tokens(), output_hidden_states=True).hidden_states[1]
    raw = plain[-4:, 1:].flatten(0, 1)
    module.requires_grad_(False)
    back = load_saelens(save_saelens(module, tmp_path / "folder")).requires_grad_(False)
    code = back.encode(raw[None])
    torch.testing.assert_close(code[0], module.encode(tiny.load().test.x[None])[0], rtol=1e-3, atol=1e-3)
    fvu = fraction_unexplained(raw, back.decode(code)[0])
    assert fvu == pytest.approx(outcome.metrics["fvu_own"], abs=1e-3)
    assert fraction_unexplained(raw, module.decode(module.encode(raw[None]))[0]) > fvu + 0.01, "it was not folded in"
