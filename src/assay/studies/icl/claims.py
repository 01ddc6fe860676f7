"""What others published about learning in context, and what has to come out here."""

from assay.report.claims import Certificate, Check, Claim

WORST = Check(
    what="query accuracy of the worst seed",
    metric="accuracy",
    rows={"model.seq_mixer": "attention"},
    over="min",
    at_least=0.99,
)
BETA = "delta_net:num_heads=4:beta_max={}"
PARITY = Check(
    what="beta_max=1, accuracy at the end of 256 tokens, best seed",
    metric="by_length.256",
    rows={"model.seq_mixer.beta_max": 1},
    over="max",
    at_most=0.6,
)

CLAIMS = {
    "icl-default": Claim(
        claim="The model should reach close to ~98% accuracy after ~1500 steps.",
        source="the spec of the in-context benchmark: its default run, attention and an MLP on MQAR",
        study="icl",
        series=("curve",),
        preset="spec",
        options={"seeds": [0, 1, 2]},
        exempt="it is about the spec's own recipe",
        checks=(
            Check(
                what="held-out accuracy after 1500 steps of 3000",
                metric="curve.14.accuracy",
                rows={"model.seq_mixer": "attention"},
                at_least=0.97,
            ),
        ),
    ),
    "mqar-zoology": Claim(
        claim=(
            "Attention recalls 4 key-value pairs in 64 tokens of a vocabulary of 8192, with d=64, one head and no "
            "state mixer."
        ),
        source="Arora et al., Zoology, ICLR 2024 (arXiv 2312.04927), Figure 2, its easiest cell",
        study="icl",
        series=("curve",),
        options={
            "task": "mqar:input_seq_len=64:num_kv_pairs=4:vocab_size=8192:filler=zero",
            "model": {
                "seq_mixer": "attention:num_heads=1",
                "state_mixer": "none",
                "model_dim": 64,
                "num_layers": 2,
                "tied": True,
            },
            "train": {"max_steps": 12500, "micro_batch_size": 512, "validate_every": 500},
            "optimizer": {"lr": 0.004, "weight_decay": 0.1},
            "eval_size": 3000,
            "seeds": [0, 1, 2],
        },
        certificate=Certificate(
            about="whether attention recalls this much",
            metric="accuracy",
            tried={"optimizer.lr": (0.001, 0.004, 0.01)},
            arms=({"model.seq_mixer": "attention"},),
            longer={"train.max_steps": 25000},
            number=WORST,
        ),
        checks=(WORST,),
    ),
    "parity-eigenvalues": Claim(
        claim=(
            "Trained on parity at 3 to 40 tokens, the delta rule answers at 256 if its eigenvalues may be negative "
            "(beta_max=2), as a nonlinear recurrence does; it guesses if they may not (beta_max=1), as attention does."
        ),
        source="Grazzi et al., ICLR 2025 (arXiv 2411.12537), table of parity: trained at 3 to 40, tested at 40 to 256",
        study="icl",
        series=("curve",),
        options={
            "task": "state_tracking:group=parity:length=3..40",
            "model": {"state_mixer": "swiglu", "model_dim": 16, "num_layers": 1, "positions": "none"},
            "train": {"max_steps": 20000, "micro_batch_size": 256, "validate_every": 2000, "warmup_ratio": 0.1},
            "optimizer": {"lr": 0.001, "weight_decay": 0},
            "eval_size": 1000,
            "seeds": [0, 1, 2],
        },
        grid={"model.seq_mixer": [BETA.format(1), BETA.format(2), "attention:num_heads=4", "gru"]},
        certificate=Certificate(
            about="whether negative eigenvalues decide about parity",
            metric="accuracy",
            tried={"optimizer.lr": (0.0003, 0.001, 0.003)},
            arms=({"model.seq_mixer.beta_max": 1}, {"model.seq_mixer.beta_max": 2}),
            longer={"train.max_steps": 40000},
            number=PARITY,
            goal=False,
        ),
        checks=(
            PARITY,
            *(
                Check(
                    what=f"{name}, accuracy at the end of 256 tokens, {'worst' if solves else 'best'} seed",
                    metric="by_length.256",
                    rows=rows,
                    over="min" if solves else "max",
                    at_least=0.99 if solves else None,
                    at_most=None if solves else 0.6,
                )
                for name, rows, solves in (
                    ("beta_max=2", {"model.seq_mixer.beta_max": 2}, True),
                    ("gru", {"model.seq_mixer": "gru"}, True),
                    ("attention", {"model.seq_mixer": "attention"}, False),
                )
            ),
        ),
    ),
    "regression-ols": Claim(
        claim=(
            "Minimum-norm least squares in context errs by 1 - n/d of the variance after n < d examples, and by "
            "nothing once n is above d."
        ),
        source=(
            "Garg et al., NeurIPS 2022 (arXiv 2208.01066): linear functions of d=20, the least-squares line of their "
            "figures"
        ),
        study="icl",
        series=("curve",),
        options={
            "task": "regression:regression_type=linear:input_dim=20:input_seq_len=26",
            "references_only": True,
            "eval_size": 1000,
            "seeds": list(range(16)),
        },
        exempt="nothing is trained",
        checks=(
            Check(
                what="error over variance after 5 examples",
                metric="references.ols.by_answer.5",
                rows={"model": None},
                target=0.75,
                tolerance=0.065,
            ),
            Check(
                what="error over variance after 10 examples",
                metric="references.ols.by_answer.10",
                rows={"model": None},
                target=0.5,
                tolerance=0.045,
            ),
            Check(
                what="error over variance after 15 examples",
                metric="references.ols.by_answer.15",
                rows={"model": None},
                target=0.25,
                tolerance=0.025,
            ),
            Check(
                what="error over variance after 25 examples",
                metric="references.ols.by_answer.25",
                rows={"model": None},
                over="max",
                at_most=0.001,
            ),
        ),
    ),
}
