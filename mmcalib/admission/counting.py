"""Texts counted without vLLM, by a process of its own that has a bound of time and memory."""

from __future__ import annotations

import threading
import weakref

from mmcalib.corpus.chat import ChatRequest
from mmcalib.domain.items import TextCounting
from mmcalib.processes import Worker

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
        self, model: str, counting: TextCounting, content: str, *, patience_s: float = _REQUEST_S
    ) -> None:
        self._patience_s = patience_s
        self._opening = model, counting, content
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._strikes = 0
        self.why = ""

    def tokens(self, request: ChatRequest, *, tokenise: bool = True) -> int | str | None:
        """Tokens of a request beside the placeholders of its items; None if it is not counted, or
        without `tokenise`. A text says why the template refuses the request.
        """
        with self._lock:
            # The process is gone where the thread has ended that began it: once more, then.
            for _ in range(2):
                if self._worker is None and not self.why:
                    self._begin()
                if self._worker is None:
                    return None
                try:
                    self._worker.send((request, tokenise))
                    found: int | str | None = self._worker.receive(self._patience_s)
                except TimeoutError:
                    self._end()
                    break
                except EOFError:
                    self._end()
                else:
                    return found
            self._strikes += 1
            if self._strikes >= _STRIKES:
                self.why = f"{_STRIKES} texts were too much for what counts them"
            return None

    def _begin(self) -> None:
        self._worker = Worker("mmcalib.child.text_counter", _MEMORY_BYTES, send_s=_START_S)
        weakref.finalize(self, self._worker.close)
        self._worker.send(self._opening)
        try:
            self.why = self._worker.receive(_START_S)
        except (TimeoutError, EOFError):
            self.why = "what counts texts does not start"
        if self.why:
            self._end()

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None
