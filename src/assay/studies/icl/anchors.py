"""Published recall against state: points to plot beside ours, read off another project's figure.

    anchors()[0]  ->  Anchor(mixer="DeltaNet", ours="delta_net", state_bytes=8900, accuracy=0.79)

anchors.json says where they are from, how they were read and under which protocol they were measured.
"""

import json
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Anchor:
    """One point of the figure; `ours` is the registered mixer it compares with, if there is one."""

    mixer: str
    ours: str | None
    state_bytes: int
    accuracy: float


def anchors() -> list[Anchor]:
    text = files("assay.studies.icl").joinpath("anchors.json").read_text(encoding="utf-8")
    return [Anchor(**point) for point in json.loads(text)["points"]]
