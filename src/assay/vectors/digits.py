"""scikit-learn's digits are 1,797 images of 8 x 8 pixels in sixteen greys, scaled to [0, 1]; they need no download.

1,197 rows to train on, 300 to choose on, 300 to report on; the split is fixed.

No paper: a data set for trying things out.
"""

from dataclasses import dataclass

import torch

from assay.nn.random import stream
from assay.vectors import vectors
from assay.vectors.base import Part, VectorData, Vectors


@vectors.register("digits")
@dataclass(frozen=True, kw_only=True)
class Digits(VectorData):
    """1,797 images of 8 x 8 pixels with their ten labels, from scikit-learn: no download."""

    def shape(self) -> tuple[int, int]:
        return 1197, 64

    def load(self) -> Vectors:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        x, y = torch.from_numpy(images).float() / 16, torch.from_numpy(labels).long()
        order = torch.randperm(len(x), generator=stream(0, "digits", "split"))
        train, validation, test = (Part(x[rows], y[rows]) for rows in order.split([1197, 300, 300]))
        return Vectors(train, validation, test, image=(8, 8))
