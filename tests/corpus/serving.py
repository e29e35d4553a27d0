"""A real web server on this machine, which counts the bytes that it sends."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Served:
    """The files of a server by their path, and how much of them was sent."""

    url: str
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


@contextmanager
def serving() -> Iterator[Served]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(head=True)

        def do_GET(self) -> None:
            self.answer()

        def answer(self, *, head: bool = False) -> None:
            served.asked += 1
            if served.hang:
                served.hang.wait()
                self.close_connection = True
                return
            data = served.files.get(self.path)
            if data is None or served.status != 200:
                self.send_error(served.status if data is not None else 404)
                return
            found = _RANGE.fullmatch(self.headers.get("Range") or "")
            if found and served.ranges:
                start, end = int(found[1]), min(int(found[2] or len(data)), len(data) - 1)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
                data = data[start : end + 1]
            else:
                self.send_response(200)
            if served.says_ranges:
                self.send_header("Accept-Ranges", "bytes" if served.ranges else "none")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if not head:
                served.sent_bytes += len(data)
                self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = Served(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield served
    finally:
        if served.hang:
            served.hang.set()
        server.shutdown()
        server.server_close()
        thread.join()
