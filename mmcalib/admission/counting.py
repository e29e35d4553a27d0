"""Texts counted without vLLM, by a process of its own that has a bound of time and memory."""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from subprocess import Popen
from typing import Any

from mmcalib.corpus.chat import ChatRequest
from mmcalib.domain.items import TextCounting
from mmcalib.processes import patient_pipe, spawn

# A template and a tokenizer take milliseconds for a page of text, seconds for a book.
_REQUEST_S = 30.0
# Imports of transformers, and the largest known vocabulary, on a busy machine.
_START_S = 60.0
_MEMORY_BYTES = 4 << 30
# So many processes may end over a text; the others stay bounded then.
_STRIKES = 3


class Counting:
    """Begun with the first text, each of which may take `patience_s`. `why` says why none is
    counted any more; empty, as far as is known, where they are.
    """

    def __init__(
        self, model: str, counting: TextCounting, *, patience_s: float = _REQUEST_S
    ) -> None:
        self._patience_s = patience_s
        self._opening = json.dumps([model, asdict(counting)]).encode()
        self._lock = threading.Lock()
        self._pipe: Connection | None = None
        self._stop: Callable[[], object] = _nothing
        self._strikes = 0
        self.why = ""

    def tokens(self, request: ChatRequest) -> int | None:
        """Tokens of a request beside the placeholders of its items; None if it is not counted."""
        asks = json.dumps([request.messages, request.fields]).encode()
        with self._lock:
            # The process is gone where the thread has ended that began it: once more, then.
            for _ in range(2):
                if self._pipe is None and not self.why:
                    self._begin()
                if self.why or self._pipe is None:
                    return None
                try:
                    found: int | None = self._answer(self._pipe, asks, self._patience_s)
                except TimeoutError:
                    self._end()
                    break
                except (OSError, EOFError, ValueError):
                    self._end()
                else:
                    return found
            self._strikes += 1
            if self._strikes >= _STRIKES:
                self.why = f"{_STRIKES} texts were too much for what counts them"
            return None

    def _begin(self) -> None:
        ours, theirs = patient_pipe(_START_S)
        numbers = [theirs.fileno(), _MEMORY_BYTES]
        process = spawn("mmcalib.child.text_counter", numbers, [theirs.fileno()])
        theirs.close()
        self._pipe = ours
        self._stop = weakref.finalize(self, _ended, ours, process)
        try:
            self.why = self._answer(ours, self._opening, _START_S)
        except (OSError, EOFError, ValueError):
            self.why = "what counts texts does not start"
        if self.why:
            self._end()

    def _end(self) -> None:
        self._stop()
        self._pipe = None

    def _answer(self, pipe: Connection, message: bytes, patience_s: float) -> Any:
        pipe.send_bytes(message)
        if not pipe.poll(patience_s):
            raise TimeoutError
        return json.loads(pipe.recv_bytes())


def _nothing() -> None:
    """There is no process yet."""


def _ended(pipe: Connection, process: Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        pipe.close()
    process.kill()
    process.wait()
