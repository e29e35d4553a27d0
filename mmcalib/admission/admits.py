"""Decide whether an item or a request fits, and count texts: the body of `Calibration.admits`."""

from __future__ import annotations

import itertools
import json
import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from mmcalib.admission.inputs import describe_item, is_cell, unsupported_type
from mmcalib.corpus.chat import ChatRequest, Prompt
from mmcalib.corpus.grammar import Grammar
from mmcalib.corpus.lines import NOT_MODELLED, OFFLINE
from mmcalib.corpus.requests import Reading, RequestLines
from mmcalib.corpus.urls import REMOTE
from mmcalib.derive.admission import (
    Admission,
    Gate,
    admit,
    admit_prompt,
    depends_on_text,
    find_request_refusal,
    leave_unknown,
    reject,
)
from mmcalib.derive.fit import TokenRange
from mmcalib.derive.remedies import add_prompt_remedy, add_remedy
from mmcalib.domain.items import Skipped, TextCounting
from mmcalib.domain.shapes import EncodedItem, takes_video_as_audio
from mmcalib.files import Scratch
from mmcalib.processes import Worker
from mmcalib.text import reason_kind

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


_REQUEST_FIELDS = {"messages", "body", "input"}
_ASK = "leave that out, or try it on the server"


def admit_item(
    gate: Gate,
    item: Any,
    root: str | os.PathLike[str] | None = None,
    counting: TextCounter | None = None,
    grammar: Grammar | None = None,
) -> Admission:
    """Decide whether an item fits. Raises TypeError for other types, UsageError outside `root`."""
    if isinstance(item, Mapping) and not is_cell(item):
        if OFFLINE in item:
            return _admit_offline(gate, item)
        line = _request_line(item)
        # Inline media are files until the answer.
        with Scratch() as scratch:
            how = Reading(allowed_root=root, scratch=scratch.path, as_sent=True, grammar=grammar)
            reader = RequestLines(os.getcwd(), **how)
            prompt = reader.prompt("the request", line)
            if isinstance(prompt, Skipped):
                return answer_unusable(prompt.reason, prompt.remedy)
            return admit_request(gate, prompt, counting)[1]
    return admit_file(gate, describe_item(item, sound=takes_video_as_audio(gate.counts)))


def admit_file(gate: Gate, file: EncodedItem | Skipped) -> Admission:
    """Decide whether the file fits, with a remedy if not."""
    if isinstance(file, Skipped):
        return answer_unreadable(file.reason)
    return add_remedy(gate, file, admit(gate, file))


def admit_request(
    gate: Gate, prompt: Prompt, counting: TextCounter | None
) -> tuple[tuple[EncodedItem, ...], Admission]:
    """Return the items (empty if one is unreadable) and if they fit; `counting` counts the text."""
    from mmcalib.media.probe import examine_whole

    if refusal := find_request_refusal((), (), gate.server, prompt.body_bytes):
        return (), reject(refusal.reason, refusal.remedy)
    files: list[EncodedItem] = []
    for item in prompt.items:
        file = examine_whole(item, sound=takes_video_as_audio(gate.counts))
        if isinstance(file, Skipped):
            return (), answer_unreadable(file.reason, of=f"{file.path}: ")
        files.append(file)
    wants = prompt.request.measure_context()
    # The calibration may have counted this text already.
    counted = gate.text_counts.get(prompt.request.digest()) if gate.text_counts else None
    text = None if counted is None else TokenRange.exactly(counted)
    most_tokens, context = prompt.request.kept_tokens, gate.max_model_len
    if most_tokens is not None and most_tokens > context:
        why = f"truncate_prompt_tokens is {most_tokens}, above max_model_len {context}"
        return tuple(files), reject(why, f"{context} at most", basis="none")
    if most_tokens is not None and most_tokens < 0:
        # `TokenizeParams.max_truncation_tokens` (vllm/renderers/params.py, 0.32).
        most_tokens = context - bool(wants.answer_tokens)
    if most_tokens and text is None and not files:
        text = TokenRange(1, most_tokens)
    answer = admit_prompt(gate, files, wants, text)
    decides = depends_on_text(gate, files, answer)
    if counting and counted is None and (answer.fits or decides):
        tokens = counting.tokens(prompt.request, tokenise=decides)
        if isinstance(tokens, str):
            return tuple(files), answer_unusable(tokens)
        if tokens is not None:
            text = TokenRange.exactly(min(tokens, most_tokens or tokens))
            answer = admit_prompt(gate, files, wants, text)
    if answer.fits and prompt.doubt:
        return tuple(files), leave_unknown(prompt.doubt, _ASK)
    return tuple(files), add_prompt_remedy(gate, files, wants, answer, text)


def answer_unreadable(reason: str, *, of: str = "") -> Admission:
    """Reject an unreadable item, which `of` names; unknown if its host is not allowed."""
    if reason == REMOTE:
        return _undecided_elsewhere(reason)
    from mmcalib.media.failure import NO_SAMPLES
    from mmcalib.media.image import HEIC, TOO_LARGE

    if reason == NO_SAMPLES:
        return leave_unknown(f"{of}{reason}, which some models take", "leave it out")
    remedies = {TOO_LARGE: "make it smaller, or leave it out", HEIC: "convert it to JPEG"}
    remedy = remedies.get(reason, "leave it out, or use another copy")
    return reject(f"{of}{reason}", remedy, basis="none", unread=reason)


def answer_unusable(reason: str, remedy: str = "") -> Admission:
    """Answer for a request that cannot be used, or that a setting of the server admits."""
    if remedy:
        return reject(reason, remedy)
    if reason == REMOTE:
        return _undecided_elsewhere(reason)
    if reason.endswith(NOT_MODELLED):
        return leave_unknown(reason, _ASK)
    remedy = "correct the request, or leave it out"
    return reject(reason, remedy, basis="none", unread=reason_kind(reason))


def _undecided_elsewhere(reason: str) -> Admission:
    return leave_unknown(reason, "check a local copy, or add its host to --allowed-media-domains")


def _admit_offline(gate: Gate, row: Mapping[str, Any]) -> Admission:
    """Decide about a prompt for `LLM.generate`, with media in memory."""
    media = row[OFFLINE]
    if not isinstance(media, Mapping) or row.keys() & {"messages", "body", "input"}:
        raise unsupported_type(row)
    listed = [value if isinstance(value, list) else [value] for value in media.values()]
    files = list[EncodedItem]()
    for one in itertools.chain.from_iterable(listed):
        file = describe_item(one)
        if isinstance(file, Skipped):
            return answer_unreadable(file.reason)
        files.append(file)
    wants = ChatRequest.of_user(str(row.get("prompt", ""))).measure_context()
    return add_prompt_remedy(gate, files, wants, admit_prompt(gate, files, wants), None)


def _request_line(request: Mapping[str, Any]) -> bytes:
    """Encode the request as a line of a requests file. Raises TypeError for other mappings."""
    if not _REQUEST_FIELDS & set(request):
        raise unsupported_type(request)
    try:
        return json.dumps(request).encode()
    except (TypeError, ValueError):  # For example, it holds an image object instead of a URL.
        raise unsupported_type(request) from None
