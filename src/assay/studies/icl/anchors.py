"""Published recall against state: points to plot beside ours, read off another project's figure.

    anchors()[0]  ->  Anchor(mixer="DeltaNet", ours="delta_net", memory=(2, 32, 32), base_conv=64, accuracy=0.79)
    anchors()[0].state_bytes  ->  4 (2 * 32 * 32 + 3 * 64) = 8960

anchors.json says where they are from, how they were read and under which protocol they were measured. State bytes are
computed from each model's layout, never read off.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from math import prod


@dataclass(frozen=True)
class Anchor:
    """One point of the figure; `ours` is the registered mixer it compares with, if there is one."""

    mixer: str
    ours: str | None
    memory: tuple[int, ...]
    """Factors of the scalars that a layer carries: heads, keys and values, or keys and values, width and length."""
    accuracy: float
    base_conv: int | None = None
    """Width of the gated convolution in front of the one layer; None: two layers of the mixer."""
    note: str = ""

    @property
    def state_bytes(self) -> int:
        """The state of all layers in float32: a BaseConv counts with the three tokens it sees."""
        scalars = prod(self.memory)
        return 4 * (2 * scalars if self.base_conv is None else scalars + 3 * self.base_conv)


def anchors() -> list[Anchor]:
    text = files("assay.studies.icl").joinpath("anchors.json").read_text(encoding="utf-8")
    return [Anchor(**{**point, "memory": tuple(point["memory"])}) for point in json.loads(text)["points"]]
