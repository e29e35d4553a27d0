"""Servers on this machine that answer as a hostile one would, byte by byte."""

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# What one connection may send, so that no test depends on being left.
MOST_BYTES = 2 << 30
MOST_S = 30.0


@dataclass
class Connection:
    """One request; `send` and `wait` say whether anybody still listens."""

    method: str
    path: str
    headers: str
    sock: socket.socket
    stop: threading.Event
    sent_bytes: int = 0

    @property
    def range(self) -> tuple[int, int] | None:
        found = re.search(r"(?im)^range: bytes=(\d+)-(\d+)", self.headers)
        return (int(found[1]), int(found[2])) if found else None

    def send(self, data: bytes) -> bool:
        if self.stop.is_set() or self.sent_bytes > MOST_BYTES:
            return False
        try:
            self.sock.sendall(data)
        except OSError:
            return False
        self.sent_bytes += len(data)
        return True

    def wait(self, seconds: float) -> bool:
        return not self.stop.wait(seconds)

    def answer(self, status: str, *headers: str, body: bytes = b"") -> bool:
        lines = (f"HTTP/1.1 {status}", *headers, "Connection: close", "", "")
        return self.send("\r\n".join(lines).encode() + body)

    def answer_range(self, data: bytes, *headers: str) -> None:
        """Answer as a good server would."""
        start, last = self.range or (0, len(data) - 1)
        body = data[start : last + 1]
        said = f"Content-Range: bytes {start}-{start + len(body) - 1}/{len(data)}"
        length = f"Content-Length: {len(body)}"
        self.answer("206 Partial Content", said, length, *headers, body=body)


@dataclass
class Server:
    url: str
    asked: list[str] = field(default_factory=list)
    # As who asked called it.
    hosts: set[str] = field(default_factory=set)


@contextmanager
def server(behave: Callable[[Connection], object], host: str = "127.0.0.1") -> Iterator[Server]:
    """`behave` answers each request in a thread of its own."""
    stop = threading.Event()
    listener = socket.create_server((host, 0))
    listener.settimeout(0.2)
    running = Server(f"http://{host}:{listener.getsockname()[1]}")

    def serve(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            sock.settimeout(MOST_S)
            head = b""
            while b"\r\n\r\n" not in head and (block := sock.recv(4096)):
                head += block
            if not head:
                return
            first, _, headers = head.decode("latin-1").partition("\r\n")
            method, path, *_ = first.split(" ")
            running.asked.append(path)
            running.hosts |= set(re.findall(r"(?im)^host: (\S+)", headers))
            behave(Connection(method, path, headers, sock, stop))

    def accept() -> None:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                sock, _ = listener.accept()
                threading.Thread(target=serve, args=(sock,), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield running
    finally:
        stop.set()
        thread.join()
        listener.close()
