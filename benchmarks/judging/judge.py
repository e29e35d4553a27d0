"""Asks `check`, then the server, the same request."""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from judging.calibrated import Calibrated
from judging.pool import Pool
from judging.request import Order, Request, body, lengthened
from judging.server import Answer, Server, ServerDiedError, serve_narrowed
from judging.subject import Subject
from judging.verdict import Verdict
from mmcalib.admission.check import check
from mmcalib.domain.items import Skipped
from mmcalib.errors import MmcalibError
from mmcalib.storage.location import allow_hosts

_MOST_STARTS = 12
# How often what vLLM fails at is sent once more.
_AGAIN = 3
Ask = Callable[[Server], Answer]


@dataclass(frozen=True, slots=True)
class Died:
    """A server that has ended, with what it was asked last and what it said."""

    asked: Order
    log: str


class Judge:
    """One subject with its server, which is begun anew where it dies.

    Usable by several threads at once, but for `forget`. Raises ServerDiedError where it dies too
    often.
    """

    def __init__(self, subject: Subject, calibrated: Calibrated, pool: Pool, log: Path) -> None:
        self._subject, self._calibrated, self.pool = subject, calibrated, pool
        self._log = log
        self._lock = threading.Lock()
        self._starts = 0
        self.died: list[Died] = []
        self._server = self._started()
        self._web = ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(_Quiet, directory=str(pool.folder))
        )
        threading.Thread(target=self._web.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.close()
        self._web.shutdown()
        self._web.server_close()

    def lets_in(self, order: Order) -> bool:
        """Whether `check` lets every request in, as far as it can be asked before the server."""
        return all(self._let_in(order))

    def _let_in(self, order: Order) -> list[bool]:
        if any(request.room for request in order):
            return [False for _ in order]
        return [said == "fits" for said, _ in self.gate(map(self._line, order))]

    def forget(self) -> None:
        """The server has seen no medium; no request may be on its way."""
        self._server.forget_media()

    def in_order(self, order: Order) -> list[Verdict]:
        """Each request's: one after the other those that `check` lets in, as a server behind it has
        them, then each of the others of a fresh server.
        """
        let_in = self._let_in(order)
        found = {i: self.after(order[: i + 1]) for i in range(len(order)) if let_in[i]}
        for i in range(len(order)):
            if not let_in[i]:
                self.forget()
                found[i] = self.after(order[: i + 1])
        return [found[i] for i in range(len(order))]

    def after(self, order: Order) -> Verdict:
        """The last one's. What the server fails at is sent again, since vLLM answers 5xx to ask for
        that (`MultiModalCacheMissError`).
        """
        request, lines = order[-1], [self._line(one) for one in order]
        line = lines[-1]
        *_, (answer, reason) = self.gate(lines)
        if self._subject.transcribes:
            path = Path(os.fsdecode(line))
            ask: Ask = lambda server: server.transcribe(path)  # noqa: E731
        else:
            sent = json.loads(line)
            ask = lambda server: server.chat(sent)  # noqa: E731
        found = self._asked(request, ask)
        again: int | None = None
        for _ in range(_AGAIN if found.status >= 500 else 0):
            again = self._asked(request, ask).status
            if again < 500:
                break
        return Verdict(answer, reason, found.status, found.said, again, found.prompt_tokens)

    def _line(self, request: Request) -> bytes:
        """What is given to `check`: a request's body, or the path of what is transcribed."""
        if self._subject.transcribes:
            return os.fsencode(self.pool[request.items[0].medium].path)
        return json.dumps(self.sent(request)).encode()

    def gate(self, lines: Iterable[bytes]) -> list[tuple[str, str]]:
        """What `mmcalib check --stdin` says to each line, and why; what ends it is said of all."""
        lines = list(lines)
        try:
            with allow_hosts(["127.0.0.1"]):
                answers = check(
                    self._calibrated.calibration, lines=lines, allowed_root=self.pool.folder
                )
                return [
                    ("no", found.reason)
                    if isinstance(found, Skipped)
                    else (found.admission.answer, found.admission.reason)
                    for found in answers
                ]
        except MmcalibError as error:
            return [("no", f"{type(error).__name__}: {error}")] * len(lines)

    def sent(self, request: Request) -> dict[str, Any]:
        """The body; where it is to fill the context, the server's own count of it comes first."""
        port = self._web.server_address[1]
        plain = body(request, self.pool, f"http://127.0.0.1:{port}")
        if request.room is None:
            return plain
        counted = self._asked(request, lambda server: server.chat(plain)).prompt_tokens
        if counted is None:
            return plain
        room = self._calibrated.calibration.gate.max_model_len - counted + request.room.offset
        # The text is followed by an answer of `request.answer`.
        answer = (request.answer or 1) if request.room.what == "text" else 0
        return lengthened(plain, request.room.what, max(1, room - answer))

    def _asked(self, request: Request, ask: Ask) -> Answer:
        server = self._server
        answer = ask(server)
        if (answer.status == 0 or answer.status >= 500) and not server.alive:
            with self._lock:
                if server is self._server:
                    self.died.append(Died((request,), server.last_lines()))
                    server.close()
                    self._server = self._started()
        return answer

    def _started(self) -> Server:
        self._starts += 1
        if self._starts > _MOST_STARTS:
            raise ServerDiedError(f"{self._subject.key}: the server has died {_MOST_STARTS} times")
        made = self._calibrated
        return serve_narrowed(made.engine_yaml, str(made.checkpoint), self.pool.folder, self._log)


class _Quiet(SimpleHTTPRequestHandler):
    """The pool over HTTP, without a line per request."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        return
