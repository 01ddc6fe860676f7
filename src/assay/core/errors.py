"""One exception is meant for people."""

from assay.core.words import printable_lines

LONGEST = 1500
"""Most characters of a text: one that quotes a stranger's file may have megabytes, and is cut in its middle."""


class UserError(Exception):
    """Signals something the user can fix: printed without a traceback, exit code 2; the text says how."""

    def __init__(self, text: str) -> None:
        half = LONGEST // 2
        super().__init__(printable_lines(text if len(text) <= LONGEST else f"{text[:half]} ... {text[-half:]}"))
