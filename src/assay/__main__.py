"""`python -m assay` is `assay`."""

from assay.cli import entry

if __name__ == "__main__":
    entry()
