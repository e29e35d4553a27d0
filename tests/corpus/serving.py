"""A real web server on this machine, which counts the bytes that it sends."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.security.servers import Connection, server


@dataclass
class Served:
    """The files of a server by their path, and how much of them was sent."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    sent_bytes: int = 0
    asked: int = 0
    # How the server differs from a good one.
    ranges: bool = True
    says_ranges: bool = True
    status: int = 200
    hang: threading.Event | None = None

    def put(self, name: str, data: bytes) -> str:
        self.files[f"/{name}"] = data
        return f"{self.url}/{name}"

    def behave(self, connection: Connection) -> None:
        self.asked += 1
        if self.hang:
            self.hang.wait()
            return
        data = self.files.get(connection.path)
        if data is None or self.status != 200:
            connection.answer(f"{404 if data is None else self.status} No", "Content-Length: 0")
            return
        says = [f"Accept-Ranges: {'bytes' if self.ranges else 'none'}"] * self.says_ranges
        # Counted before it is sent: who asked may look at the count as soon as the bytes arrive.
        if connection.range and self.ranges:
            start, last = connection.range
            self.sent_bytes += len(data[start : last + 1])
            connection.answer_range(data, *says)
            return
        body = b"" if connection.method == "HEAD" else data
        self.sent_bytes += len(body)
        connection.answer("200 OK", f"Content-Length: {len(data)}", *says, body=body)


@contextmanager
def serving() -> Iterator[Served]:
    served = Served()
    with server(served.behave) as running:
        served.url = running.url
        try:
            yield served
        finally:
            if served.hang:
                served.hang.set()
