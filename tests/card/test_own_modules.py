"""Cards of one's own files: a mixer with `forward` alone, and a plain torch module."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from card_toys import TOY

from assay.card import cost, protocol
from assay.core.errors import UserError
from assay.core.foreign import Source, load_source, read_source
from assay.mixers import mixers

Cli = Callable[..., tuple[int, str, str]]
LAYER = """
import torch
from torch import nn

class MyLayer(nn.Module):
    def __init__(self, {width}, kernel: int = 4, bias=True, scale=None, act=None, inner=nn.ReLU):
        super().__init__()
        self.kernel = kernel
        self.conv = nn.Conv1d({width}, {width}, kernel, groups={width}, bias=bias)

    def forward(self, x):
        return self.conv(nn.functional.pad(x.mT, (self.kernel - 1, 0))).mT
"""
FORWARD_ALONE = (
    LAYER.format(width="d_model").replace("(nn.Module)", "(MixerModule)")
    + """
from dataclasses import dataclass
from assay.mixers import mixers
from assay.mixers.base import Mixer

@mixers.register("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(Mixer):
    def core(self, d_model, max_len):
        return MyLayer(d_model)
"""
).replace("import torch\n", "import torch\nfrom assay.mixers.base import MixerModule\n", 1)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(protocol, "TIERS", {"smoke": TOY})
    monkeypatch.setattr(cost, "LENGTH", 16)
    monkeypatch.setattr(cost, "REPEATS", 1)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "word", "name"),
    [
        (FORWARD_ALONE, "mine.py", "mine"),
        (LAYER.format(width="dim"), "mine.py:MyLayer:kernel=2", "MyLayer:kernel=2"),
    ],
    ids=["own_2_forward_alone", "own_3_a_torch_module"],
)
def test_what_has_forward_alone_gets_its_card(text: str, word: str, name: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "mine.py").write_text(text)
    code, out, err = cli("card", word, "--vs", "gru", "--executor", "serial")
    assert code == 0 and "trained on this machine" in out and "decoded on this machine" not in out, err
    (written,) = (tmp_path / "results/card").glob("*.json")
    (card,) = json.loads(written.read_text())
    assert card["mixer"] == name and card["questions"]["recall"]["scores"]
    assert card["speed"][name]["decoded"] is None and card["speed"]["gru"]["decoded"] > 0
    assert card["size"]["state_scalars"] == TOY.questions[0].model["model_dim"] * 8, "all tokens of the sequence"
    assert "grows with the length" in out and name in out
    page = written.with_suffix(".html").read_text()
    assert "class MyLayer" in page and "grows with the length" in page
    assert set(re.findall(r'data-name="(speed_\w+)"', page)) >= {"speed_trained", "speed_decoded"}


@pytest.mark.parametrize("width", ["d_model", "dim", "hidden_size"])
def test_own_3_the_width_is_found_by_its_name_and_the_file_is_the_version(width: str, tmp_path: Path) -> None:
    text = LAYER.format(width=width)
    load_source(Source(str(tmp_path / "mine.py"), text))
    mixer = mixers.parse("MyLayer:kernel=3:scale=0.5")
    assert mixer.label == "MyLayer:kernel=3:scale=0.5"
    assert mixer.spec() == {"name": "MyLayer", "conv": 0, "kernel": 3, "bias": True, "scale": 0.5, "act": None}
    assert mixer.component_version() == hashlib.sha256(text.encode()).hexdigest()
    conv = mixer.build(8, 16).layer.conv
    assert conv.weight.shape == (8, 1, 3) and conv.bias is not None
    assert mixers.parse("MyLayer:bias=false").build(8, 16).layer.conv.bias is None
    assert mixers.parse("MyLayer:conv=4").state_size(8, 5) == 5 * 8 + 3 * 8, "assay's convolution in front"
    assert mixers.load(mixer.spec()) == mixer, "a worker has the file and the spec"


def test_own_3_a_value_without_a_default_and_a_length_are_given(tmp_path: Path) -> None:
    text = """
from torch import nn
class Table(nn.Module):
    ordered = False
    def __init__(self, hidden_size, heads, max_len, dim_head=7, *, layer="x"):
        super().__init__()
        self.given = hidden_size, heads, max_len, dim_head, layer
"""
    load_source(Source(str(tmp_path / "table.py"), text))
    with pytest.raises(UserError, match="needs a value of heads"):
        mixers.parse("Table")
    table = mixers.parse("Table:heads=2:layer=y")
    assert table.build(8, 16).layer.given == (8, 2, 16, 7, "y") and table.state_size(8, 5) == 40
    assert not table.tells_order()


def test_own_3_any_keywords_and_no_constructor_at_all_are_no_options(tmp_path: Path) -> None:
    text = """
from torch import nn
class Bare(nn.Module):
    ordered = False
    def forward(self, x):
        return x
class Open(nn.Module):
    def __init__(self, dim, /, *args, width=3, **more):
        super().__init__()
class Named(nn.Module):
    def __init__(self, dim, *args, width=3, **more):
        super().__init__()
        self.given = dim, width, args, more
"""
    load_source(Source(str(tmp_path / "bare.py"), text))
    x = torch.randn(2, 3, 8)
    assert mixers.parse("Bare").build(8, 16)(x) is x
    assert mixers.parse("Named:width=5").build(8, 16).layer.given == (8, 5, (), {})
    with pytest.raises(UserError, match="name its width"):
        mixers.parse("Open")


@pytest.mark.parametrize(
    ("text", "word", "said"),
    [
        (LAYER.format(width="embed_dim"), "mine.py", ["d_model", "dim", "hidden_size"]),
        (LAYER.format(width="dim") + "class Other(MyLayer): pass", "mine.py", ["MyLayer, Other", "mine.py:Other"]),
        (LAYER.format(width="dim"), "mine.py:MyLayr", ["'MyLayer'"]),
        (LAYER.format(width="dim"), "mine.py:MyLayer:kernal=2", ["'kernel'"]),
        (LAYER.format(width="dim").replace("act=None", "conv=4"), "mine.py", ["'conv'", "rename"]),
        (LAYER.format(width="dim").replace("kernel: int = 4", "kernel"), "mine.py", ["MyLayer:kernel=VALUE"]),
        (LAYER.format(width="dim").replace(".mT\n", ".mT, None\n"), "mine.py", ["MyLayer returns a tuple"]),
        (
            LAYER.format(width="dim").replace("class", "from assay.mixers import mixers\n@mixers.register('m')\nclass"),
            "mine.py",
            ["derive from Mixer or leave the decorator away"],
        ),
    ],
    ids=[
        "no width",
        "two modules",
        "a wrong name",
        "a wrong option",
        "a taken name",
        "no value",
        "a tuple",
        "registered",
    ],
)
def test_own_3_what_is_wrong_with_a_module_is_one_line(
    text: str, word: str, said: list[str], tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "mine.py").write_text(text)
    code, out, err = cli("card", word, "--dry-run")
    assert code == 2 and not out and len(err.splitlines()) == 1 and all(each in err for each in said), err


def test_own_3_two_files_with_one_name_are_not_mixed_up(tmp_path: Path) -> None:
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(LAYER.format(width="dim") + f"# {name}")
        load_source(read_source(tmp_path / name))
    with pytest.raises(UserError, match=r"one\.py and in .*two\.py"):
        mixers.parse("MyLayer")
