"""Count texts without vLLM, in a separate process with limits on time and memory."""

from __future__ import annotations

import threading
import weakref

from mmcalib.corpus.chat import ChatRequest
from mmcalib.domain.items import TextCounting
from mmcalib.processes import Worker

# A page of text takes milliseconds, a book seconds.
_REQUEST_S = 30.0
# To import transformers and load the largest known vocabulary on a busy machine.
_START_S = 60.0
_MEMORY_BYTES = 4 << 30
# After this number of dead processes, no more texts are counted: their bounds decide.
_STRIKES = 3


class TextCounter:
    """Counts texts in a process, each within `patience_s`; `why` is the reason if it stopped."""

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
        """Count a request's tokens without its items' placeholders. Returns None if that fails or
        without `tokenise`, or the reason, a string, if the chat template rejects the request.
        """
        with self._lock:
            # The process dies with the thread that started it, so try twice.
            for _ in range(2):
                if self._worker is None and not self.why:
                    self._start()
                if self._worker is None:
                    return None
                try:
                    self._worker.send((request, tokenise))
                    answer: int | str | None = self._worker.receive(self._patience_s)
                except TimeoutError:
                    self._end()
                    break
                except EOFError:
                    self._end()
                else:
                    return answer
            self._strikes += 1
            if self._strikes >= _STRIKES:
                self.why = f"the text counter failed on {_STRIKES} texts"
            return None

    def _start(self) -> None:
        self._worker = Worker("mmcalib.child.text_counter", _MEMORY_BYTES, send_s=_START_S)
        weakref.finalize(self, self._worker.close)
        self._worker.send(self._opening)
        try:
            self.why = self._worker.receive(_START_S)
        except (TimeoutError, EOFError):
            self.why = "the text counter does not start"
        if self.why:
            self._end()

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None
