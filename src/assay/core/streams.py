"""Standard output and error may lose their reader (`| head -3`) without ending the work that is under way."""

import errno
import os
from collections.abc import Callable
from typing import Any, TextIO

from assay.core.errors import UserError
from assay.core.words import printable_lines


class Forgiving:
    """A text stream that goes silent once nobody reads it any more, and records that it did (`lost`). Other errors,
    such as a full disk behind it, are raised. A `plain` one prints no control characters, which may come from files of
    others; progress bars need them on the other."""

    def __init__(self, stream: TextIO, *, plain: bool = False) -> None:
        self._stream, self._plain = stream, plain
        self.lost = False

    def write(self, text: str) -> int:
        encoding = self._stream.encoding or "utf-8"
        text = printable_lines(text) if self._plain else text
        # Characters that the stream cannot encode, such as half of a surrogate pair, are escaped.
        self._unless_lost(self._stream.write, text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._unless_lost(self._stream.flush)

    def _unless_lost(self, do: Callable[..., Any], *given: Any) -> None:
        try:
            if not self.lost:
                do(*given)
        except OSError as error:
            self.lost = True
            # Python flushes the rest of its buffer at exit, and would report the error there once more.
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, self._stream.fileno())
            os.close(sink)
            if error.errno not in (errno.EPIPE, errno.EIO):  # no reader at the other end, or no terminal any more
                raise UserError(f"cannot write to {self._stream.name}: {error.strerror}.") from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
