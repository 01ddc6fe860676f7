"""The memory guard's figures against what runs really hold: within a factor of three, either way."""

import json
import subprocess
import sys

import pytest

MEASURE = """
import json, resource, sys
import scipy.optimize, sklearn.linear_model
from assay.api import configure
from assay.core.study import Context
from assay.studies import studies
from assay.train.memory import need_of

name, options = sys.argv[1], json.loads(sys.argv[2])
run = configure(studies[name], None, options).plan()[0]
need = sum(need_of(run).values())
before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
list(studies[run.study]().execute([run], Context()))
print(json.dumps([need, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before]))
"""
FEW = {"max_steps": 2, "validate_every": 2}
SETTINGS = [
    ("icl", {"task": "mqar", "train": FEW, "eval_size": 1000}),
    ("icl", {"task": "mqar:vocab_size=100000", "train": FEW | {"micro_batch_size": 16}, "eval_size": 100}),
    ("icl", {"task": "regression", "model": {"model_dim": 256}, "train": FEW, "eval_size": 200}),
    ("expressivity", {"models": ["gru"], "D_z": 1024, "batch_eval": 1024, "jac_points": 0, "retr_steps": 20}),
    ("expressivity", {"models": ["self_attn"], "batch_eval": 8192, "jac_points": 0, "retr_steps": 20}),
    ("sae", {"data": "dictionary:rows=100000:atoms=256", "coders": ["topk:k=4"], "d_code": 512, "epochs": 1}),
    ("sae", {"data": "dictionary:rows=2000", "coders": ["relu_l1"], "d_code": 4096, "epochs": 1}),
    ("sae.theorem", {"batch_size": 2000, "hidden_dim": 4000}),
    ("modular.sweep", {"P": 200, "dimensions": [16], "epochs": 1, "batch": 1024}),
    ("modular.sweep", {"P": 500, "dimensions": [16], "epochs": 1, "batch": 4096}),
    ("modular.sweep", {"P": 150, "dimensions": [150], "epochs": 1, "batch": 1024}),
]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the resident size before a run is read from /proc")
@pytest.mark.parametrize(("name", "options"), SETTINGS, ids=[f"{name} {options}" for name, options in SETTINGS])
def test_the_estimate_is_within_a_factor_of_three_of_the_peak(name: str, options: dict[str, object]) -> None:
    words = [sys.executable, "-c", MEASURE, name, json.dumps({**options, "seeds": [0]})]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    need, measured = json.loads(found.stdout.splitlines()[-1])
    assert 1 / 3 < need / measured < 3, f"{need / 1e6:.0f} MB estimated, {measured / 1e6:.0f} MB measured"
