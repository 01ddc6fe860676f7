"""What document 000 (expressivity) writes, as it writes it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]
ENCODER = """
from measure import register, Config, nn, F

@register("MyCoolEncoder")
class MyEnc(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.net = nn.Linear(cfg.D_in, cfg.D_z)
    def forward(self, x):
        z = self.net(x)          # (B, L, D_z) or (B, D_z)
        return F.relu(z[:, -1])  # ExpressivityTester expects (B, D_z)
"""


def test_10_the_encoder_of_the_document_is_a_plugin(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "my_encoder.py").write_text(ENCODER)
    words = ["--models", "MyCoolEncoder", "--seeds", "0", "1", "--dry-run", "--json"]
    code, out, err = cli("expressivity", "--plugin", tmp_path / "my_encoder.py", *words)
    assert code == 0, err
    assert out.count("MyCoolEncoder") == 2


def test_10_the_encoder_of_the_document_is_computed_by_workers(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "my_encoder.py").write_text(ENCODER)
    few = ["--batch_eval", "128", "--batch_train", "32", "--retr_steps", "2", "--retr_train_steps", "0"]
    words = ["--models", "MyCoolEncoder", "--seeds", "0", "--jac_points", "0", "--workers", "1", "--out", tmp_path]
    code, out, err = cli("expressivity", "--plugin", tmp_path / "my_encoder.py", *words, *few)
    assert code == 0, err
    assert "MyCoolEncoder" in out


@pytest.mark.parametrize("word", ["measure.py", "./measure.py"])
def test_10_measure_py_names_the_command(cli: Cli, word: str) -> None:
    code, _, err = cli(word, "--fast")
    assert code == 2 and "`assay expressivity`" in err


@pytest.mark.parametrize("there", [False, True], ids=["without one", "beside a measure.py"])
def test_10_a_measure_py_that_is_there_comes_first(there: bool, tmp_path: Path) -> None:
    if there:
        (tmp_path / "measure.py").write_text("register = 'mine'")
    (tmp_path / "script.py").write_text("import assay.originals\nfrom measure import register\nprint(register)")
    ran = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("mine" if there else "<function register")
