"""What the spec and the papers say of sparse coders, and what has to come out here."""

from assay.report.claims import Check, Claim


def _configuration(lse: float, var: float, tc: float) -> dict[str, object]:
    return {"coder": "lse_infomax", "coder.lambda_lse": lse, "coder.lambda_var": var, "coder.lambda_tc": tc}


A, B, C, D = (
    _configuration(*weights) for weights in ((1.0, 0.0, 0.0), (1.0, 1.0, 0.0), (1.0, 1.0, 1.0), (0.0, 1.0, 1.0))
)
"""The four configurations of the spec's ablation."""

CLAIMS = {
    "implicit-em-ablation": Claim(
        claim=(
            "Of a decoder-free coder on MNIST, log-sum-exp alone collapses, a variance term keeps every unit alive, "
            "and decorrelation keeps them different; a linear probe on its 64 units reads more than on those of a "
            "standard sparse autoencoder."
        ),
        source=(
            "Oursland, decoder-free sparse autoencoders from implicit EM, encoder study: ablation and benchmark "
            "tables, 100 epochs (run on a GPU; ASSAY_DATA names the folder that has MNIST)"
        ),
        study="sae.ablation",
        options={
            "config": "ablation",
            "controls": ["relu_l1:l1=0.01:form=spec", "topk:k=8", "fast_ica", "pca"],
            "seeds": [0, 1, 2],
        },
        tables=("ablation",),
        checks=(
            Check(
                what="A, lse alone: dead units of 64, fewest of the seeds",
                metric="dead_units",
                rows=A,
                over="min",
                at_least=64,
            ),
            Check(
                what="B, lse and variance: dead units, most of the seeds",
                metric="dead_units",
                rows=B,
                over="max",
                at_most=0,
            ),
            Check(
                what="C, with decorrelation: dead units, most of the seeds",
                metric="dead_units",
                rows=C,
                over="max",
                at_most=0,
            ),
            Check(
                what="D, no lse: dead units, most of the seeds",
                metric="dead_units",
                rows=D,
                over="max",
                at_most=0,
            ),
            Check(
                what="B: redundancy (published 1875.4)",
                metric="redundancy_score",
                rows=B,
                target=1875,
                tolerance=190,
            ),
            Check(
                what="C: redundancy (published 29.26)",
                metric="redundancy_score",
                rows=C,
                target=29.3,
                tolerance=3,
            ),
            Check(
                what="D: redundancy (published 27.57)",
                metric="redundancy_score",
                rows=D,
                target=27.6,
                tolerance=3,
            ),
            Check(
                what="C: responsibility entropy (published 3.85)",
                metric="responsibility_entropy",
                rows=C,
                target=3.85,
                tolerance=0.05,
            ),
            Check(
                what="D: responsibility entropy (published 1.99)",
                metric="responsibility_entropy",
                rows=D,
                target=1.99,
                tolerance=0.1,
            ),
            Check(
                what="C: accuracy of a linear probe (published 0.9343)",
                metric="linear_probe_accuracy",
                rows=C,
                target=0.934,
                tolerance=0.005,
            ),
            Check(
                what="C: active units of 64 (published 17.2)",
                metric="l0_sparsity",
                rows=C,
                target=17.2,
                tolerance=1.5,
            ),
            Check(
                what="standard sparse autoencoder: accuracy of a linear probe (published 0.9026)",
                metric="linear_probe_accuracy",
                rows={"coder": "relu_l1", "coder.form": "spec"},
                target=0.9026,
                tolerance=0.008,
            ),
            Check(
                what="standard sparse autoencoder: active units of 64 (published 32.2)",
                metric="l0_sparsity",
                rows={"coder": "relu_l1", "coder.form": "spec"},
                target=32.2,
                tolerance=3,
            ),
        ),
    ),
}
