"""`python -m assay` is `assay`."""

from assay.command.cli import entry

if __name__ == "__main__":
    entry()
