"""The hub is asked once and briefly; any answer is one."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from assay.data import hub


class Refuses(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_error(403)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def listening() -> Iterator[socket.socket]:
    """A place that takes calls and never answers."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held


def test_a_refusal_is_an_answer() -> None:
    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert hub.answers(f"http://127.0.0.1:{server.server_port}", patience=60)


def test_silence_and_a_closed_door_are_not() -> None:
    with listening() as held:
        port = held.getsockname()[1]
        start = time.monotonic()
        assert not hub.answers(f"http://127.0.0.1:{port}", patience=0.3)
        assert time.monotonic() - start < 60, "it waits for ever otherwise; a busy machine needs seconds"
    assert not hub.answers(f"http://127.0.0.1:{port}/closed")


def test_another_certificate_is_the_business_of_the_hubs_libraries() -> None:
    with HTTPServer(("127.0.0.1", 0), Refuses) as server:  # it does not speak TLS at all
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert hub.answers(f"https://127.0.0.1:{server.server_port}")
