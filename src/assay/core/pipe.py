"""A driver and a worker process exchange messages: pickles, each after its length, over a pair of sockets."""

import os
import pickle
import socket
import struct
import threading
import weakref
from typing import Any

LENGTH = struct.Struct("!Q")
PIECE = 1 << 20


class ForkedError(ConnectionError):
    """A forked child used a pipe that is its parent's."""


class Pipe:
    """One end. A message is sent completely or, when its sender dies, not delivered; reading never waits for the second
    half of one unless it is asked to (`receive`).

    An end belongs to one process. In a child that this process forks it is closed: a lock of threads does not keep
    processes apart, so the child's bytes could land inside a message of its parent's, and it could take the parent's
    next job."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()  # a run may send progress from its own threads
        self._arrived = bytearray()
        self._forked = False
        _OPEN.add(self)

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Any) -> None:
        if self._forked:  # before the lock, which a thread of the parent may have held when it forked
            raise ForkedError("this process was forked from a worker, and only the worker itself can send messages.")
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)  # what cannot be pickled fails before a byte is sent
        with self._lock:
            self._end.sendall(LENGTH.pack(len(data)))
            self._end.sendall(data)

    def receive(self) -> Any:
        """Wait for the next message and return it. EOFError when the other end is closed."""
        while (message := self._next()) is None:
            self._read(0)
        return message[0]

    def arrived(self) -> tuple[list[Any], bool]:
        """Return the messages that have arrived completely, without waiting, and whether more can come."""
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
        if self._forked:
            raise EOFError
        piece = self._end.recv(PIECE, flags)
        if not piece:
            raise EOFError
        self._arrived += piece

    def _next(self) -> tuple[Any] | None:
        """Return the first message that has arrived, in a tuple since a message may be None."""
        if len(self._arrived) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._arrived)
        end = LENGTH.size + length
        if len(self._arrived) < end:
            return None
        message = pickle.loads(memoryview(self._arrived)[LENGTH.size : end])
        del self._arrived[:end]
        return (message,)


_OPEN: weakref.WeakSet[Pipe] = weakref.WeakSet()


def _close_in_child() -> None:
    for pipe in _OPEN:
        pipe._forked = True
        pipe.close()


os.register_at_fork(after_in_child=_close_in_child)
