"""Messages between a driver and a worker process: pickles, each after its length, over a pair of sockets."""

import pickle
import socket
import struct
import threading
from typing import Any

LENGTH = struct.Struct("!Q")
PIECE = 1 << 20


class Pipe:
    """One end. A message is sent whole or, when its sender dies, not delivered; reading never waits for the second
    half of one unless it is asked to (`receive`)."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()  # a run may send progress from threads of its own
        self._arrived = bytearray()

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Any) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)  # what cannot be pickled fails before a byte is sent
        with self._lock:
            self._end.sendall(LENGTH.pack(len(data)))
            self._end.sendall(data)

    def receive(self) -> Any:
        """The next message, waited for. EOFError when the other end is closed."""
        while (message := self._next()) is None:
            self._read(0)
        return message[0]

    def arrived(self) -> tuple[list[Any], bool]:
        """The messages that are there in full, without waiting, and whether more can come."""
        try:
            while True:
                self._read(socket.MSG_DONTWAIT)
        except BlockingIOError:
            is_open = True
        except (EOFError, ConnectionError):
            is_open = False
        messages = []
        while (message := self._next()) is not None:
            messages.append(message[0])
        return messages, is_open

    def close(self) -> None:
        self._end.close()

    def _read(self, flags: int) -> None:
        piece = self._end.recv(PIECE, flags)
        if not piece:
            raise EOFError
        self._arrived += piece

    def _next(self) -> tuple[Any] | None:
        """The first message of what has arrived, in a tuple since a message may be None."""
        if len(self._arrived) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._arrived)
        end = LENGTH.size + length
        if len(self._arrived) < end:
            return None
        message = pickle.loads(memoryview(self._arrived)[LENGTH.size : end])
        del self._arrived[:end]
        return (message,)
