"""Read what `Calibration.admits` takes, count its text, and decide whether it fits."""

from __future__ import annotations

import itertools
import json
import os
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmcalib.corpus import urls
from mmcalib.corpus.chat import ChatRequest, Prompt
from mmcalib.corpus.grammar import Grammar
from mmcalib.corpus.lines import NOT_MODELLED, OFFLINE, BadRequest
from mmcalib.corpus.requests import Reading, RequestLines
from mmcalib.corpus.urls import OUTSIDE, REMOTE
from mmcalib.domain.items import ByteSource, Item, Skipped, TextCounting
from mmcalib.domain.model import BODY_BYTES
from mmcalib.domain.shapes import (
    AudioShape,
    EncodedItem,
    Encoding,
    ImageShape,
    VideoShape,
    invalid_reason,
    is_channels_last,
    is_size,
    takes_video_as_audio,
)
from mmcalib.files import Scratch
from mmcalib.gate.admission import (
    Admission,
    Gate,
    admit,
    admit_prompt,
    admit_with_reserve,
    find_request_refusal,
    leave_unknown,
    reject,
)
from mmcalib.gate.fit import TokenRange
from mmcalib.gate.item_remedies import add_prompt_remedy, add_remedy
from mmcalib.processes import Worker, WorkerFailed
from mmcalib.storage.location import Location, is_allowed
from mmcalib.text import MISSING, one_line, reason_kind

ACCEPTED = (
    "a path, a URL, bytes, a binary file, a PIL.Image, an array or tensor of its pixels, a clip as "
    "a list or array of frames, audio as (array, rate in Hz), a chat request, or a shape"
)
# The path of media in memory; no file has it.
IN_MEMORY = "memory://item"


def is_cell(item: Any) -> bool:
    """Return whether it is an encoded medium of the `datasets` library: {bytes, path}."""
    return isinstance(item, Mapping) and bool(item) and set(item) <= {"bytes", "path"}


def describe_item(item: Any, *, sound: bool = False) -> EncodedItem | Skipped:
    """Read an item's shape, `sound` as in `examine`; skip hosts not allowed. Raises TypeError."""
    medium = _find_medium(item)
    if isinstance(medium, Item):
        from mmcalib.media.probe import examine_whole

        medium = examine_whole(medium, sound=sound)
    if isinstance(medium, EncodedItem) and (why := invalid_reason(medium.shape)):
        return Skipped(IN_MEMORY, one_line(why))
    return medium


def _find_medium(item: Any) -> Item | EncodedItem | Skipped:
    if item is None:
        return Skipped(IN_MEMORY, MISSING)
    if isinstance(item, ImageShape | VideoShape | AudioShape):
        return EncodedItem(item)
    if isinstance(item, str | os.PathLike):
        return item_at(item)
    if isinstance(item, bytes | bytearray | memoryview):
        return _in_memory(bytes(item))
    if is_cell(item):
        data = item.get("bytes")
        return _find_medium(item.get("path") if data is None else data)
    if hasattr(item, "read") and (data := _read_whole(item)) is not None:
        return _in_memory(data)
    if size := _picture_size(item):
        return EncodedItem(size)
    if isinstance(item, list) or len(getattr(item, "shape", ())) == 4:
        sizes = [size for frame in item if (size := _picture_size(frame))]
        if sizes and len(sizes) == len(item):
            from mmcalib.media import failure, video

            try:
                return video.clip_of(sizes, all_frames=True)
            except failure.Unreadable as error:
                return Skipped(IN_MEMORY, str(error))
    if isinstance(item, tuple) and len(item) == 2 and (sound := _sound(*item)) is not None:
        return sound
    raise unsupported_type(item)


def _picture_size(item: Any) -> ImageShape | None:
    """Describe a `PIL.Image`, or an array or tensor of pixels; None for others."""
    from PIL import Image

    if isinstance(item, Image.Image):
        from mmcalib.media.image import turned_size

        return ImageShape(*turned_size(item))
    axes = [int(size) for size in getattr(item, "shape", ())]
    if len(axes) != 3:
        return None
    height, width = axes[:2] if is_channels_last(axes) else axes[1:]
    return ImageShape(width, height)


def unsupported_type(item: Any) -> TypeError:
    """Return the error for a type that `admits` does not take."""
    kind = type(item)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(item, Mapping):
        name += f" of {', '.join(map(str, list(item)[:8])) or 'nothing'}"
    return TypeError(f"cannot check {name}; mmcalib takes {ACCEPTED}")


def _read_whole(file: Any) -> bytes | None:
    """Read a binary file and restore its position; None for a text file."""
    try:
        start = file.tell()
        file.seek(start)
    except (AttributeError, OSError, ValueError):
        start = None
    data = file.read()
    if start is not None:
        file.seek(start)
    return data if isinstance(data, bytes) else None


def item_at(name: str | os.PathLike[str]) -> Item | Skipped:
    """Return the item of a path, or of a URL if no file has that name."""
    if not isinstance(name, str) or os.path.lexists(name):
        return Item(os.path.abspath(os.fsdecode(name)))
    if is_size(name):
        return Item(name)
    try:
        if name.lower().startswith("file://"):
            return Item(os.path.abspath(urls.file_url_path(name)))
        if urls.is_inline(name):
            return _in_memory(urls.decode_data_url(name)[0])
        remote = urls.remote_url(name)
    except BadRequest as error:
        return Skipped(IN_MEMORY, str(error))
    if Location.of(name).is_file:
        return Item(os.path.abspath(name))
    if remote is None:
        return Skipped(name, "URL with an unsupported scheme")
    return Item(remote) if is_allowed(remote) else Skipped(name, urls.REMOTE)


def _in_memory(data: bytes) -> Item:
    return Item(IN_MEMORY, byte_source=ByteSource("", len(data), data=data))


def _sound(array: Any, rate_hz: Any) -> EncodedItem | None:
    """Describe audio of one or two axes (channels, samples) at a whole rate in Hz, else None."""
    try:
        shape, whole = tuple(array.shape), 0 < rate_hz == int(rate_hz)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None
    if not whole or len(shape) not in (1, 2) or 0 in shape:
        return None
    channels = min(shape) if len(shape) == 2 else 1
    return EncodedItem(AudioShape(max(shape), int(rate_hz)), Encoding(channels=channels))


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
        # The kernel kills the process when the thread that started it ends: it needs its own.
        self._starter = ThreadPoolExecutor(1)
        self._strikes = 0
        self.why = ""
        _COUNTERS.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy without the process."""
        return TextCounter, self._opening

    def tokens(self, request: ChatRequest, *, tokenise: bool = True) -> int | str | None:
        """Count a request's tokens without its items' placeholders. Returns None if that fails or
        without `tokenise`, or the reason, a string, if the chat template rejects the request.
        """
        with self._lock:
            # The process may have died since the last text, so try twice.
            for _ in range(2):
                if self._worker is None and not self.why:
                    self._start()
                if self._worker is None:
                    return None
                try:
                    self._worker.send((request, tokenise))
                    answer: int | str | None = self._worker.receive(self._patience_s)
                except WorkerFailed as error:
                    self._end()
                    if error.is_silent:
                        break
                else:
                    return answer
            self._strikes += 1
            if self._strikes >= _STRIKES:
                self.why = f"the text counter failed on {_STRIKES} texts"
            return None

    def _start(self) -> None:
        module = "mmcalib.child.text_counter"
        self._worker = self._starter.submit(Worker, module, _MEMORY_BYTES, send_s=_START_S).result()
        self._finalizer = weakref.finalize(self, self._worker.close)
        self._worker.send(self._opening)
        try:
            self.why = self._worker.receive(_START_S)
        except WorkerFailed:
            self.why = "the text counter does not start"
        if self.why:
            self._end()

    def _end(self) -> None:
        if self._worker is not None:
            self._finalizer()
        self._worker = None


_COUNTERS: weakref.WeakSet[TextCounter] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Forget the processes, after a fork: their answers would reach parent and child at random."""
    for counter in _COUNTERS:
        if counter._worker is not None:
            counter._finalizer.detach()
        counter._lock, counter._worker = threading.Lock(), None
        counter._starter = ThreadPoolExecutor(1)


os.register_at_fork(after_in_child=_leave_to_parent)


_REQUEST_FIELDS = {"messages", "body", "input"}
_ASK = "leave that out, or try it on the server"


def as_sent(
    gate: Gate, scratch: Path, root: str | os.PathLike[str] | None, grammar: Grammar | None
) -> Reading:
    """How to read requests as they are sent to the gate's server."""
    most = gate.server.limits.get(BODY_BYTES, 0)
    return Reading(scratch, root, grammar, as_sent=True, most_body_bytes=most)


def admit_item(
    gate: Gate,
    item: Any,
    root: str | os.PathLike[str] | None = None,
    counting: TextCounter | None = None,
    grammar: Grammar | None = None,
) -> Admission:
    """Decide whether an item fits. Raises TypeError for other types."""
    if isinstance(item, Mapping) and not is_cell(item):
        if OFFLINE in item:
            return _admit_offline(gate, item)
        line = _request_line(item)
        # Inline media are files until the answer.
        with Scratch() as scratch:
            how = replace(as_sent(gate, scratch.path, root, grammar), urls_only=True)
            prompt = RequestLines(os.getcwd(), how).prompt("the request", line)
            if isinstance(prompt, Skipped):
                return answer_unusable(prompt.reason)
            return admit_request(gate, prompt, counting, os.path.realpath(scratch.path))[1]
    return admit_file(gate, describe_item(item, sound=takes_video_as_audio(gate.counts)))


def admit_file(gate: Gate, file: EncodedItem | Skipped) -> Admission:
    """Decide whether the file fits, with a remedy if not."""
    if isinstance(file, Skipped):
        return answer_unreadable(file.reason)
    return add_remedy(gate, file, admit(gate, file))


def admit_request(
    gate: Gate, prompt: Prompt, counting: TextCounter | None, scratch: str
) -> tuple[tuple[EncodedItem, ...], Admission]:
    """Return the items (empty if one is unreadable) and if they fit; `counting` counts the text.
    Inline media are files in `scratch`, a resolved path.
    """
    from mmcalib.media.probe import examine_whole

    if refusal := find_request_refusal((), (), gate.server, prompt.body_bytes):
        return (), reject(refusal.reason, refusal.remedy)
    files: list[EncodedItem] = []
    for number, item in enumerate(prompt.items, start=1):
        file = examine_whole(item, sound=takes_video_as_audio(gate.counts))
        if isinstance(file, Skipped):
            inline = os.path.dirname(item.path) == scratch
            name = f"inline {item.declared} (item {number})" if inline else item.path
            return (), answer_unreadable(file.reason, of=f"{name}: ")
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
    # Only its text leaves the prompt unknown.
    decides = answer.answer == "unknown" and all(
        admit_with_reserve(gate, file, 0).fits for file in files
    )
    if wants.is_countable and counting and counted is None and (answer.fits or decides):
        tokens = counting.tokens(prompt.request, tokenise=decides)
        if isinstance(tokens, str):
            return tuple(files), answer_unusable(tokens)
        if tokens is not None:
            text = TokenRange.exactly(tokens if files else min(tokens, most_tokens or tokens))
            answer = admit_prompt(gate, files, wants, text)
    whole_tokens = (answer.tokens or 0) + (text.most or 0 if text else 0)
    if answer.fits and files and most_tokens and whole_tokens > most_tokens:
        return tuple(files), leave_unknown("truncate_prompt_tokens may cut an item off", _ASK)
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


def answer_unusable(reason: str) -> Admission:
    """Answer for a request that cannot be used."""
    if reason == REMOTE:
        return _undecided_elsewhere(reason)
    if reason.endswith(NOT_MODELLED):
        return leave_unknown(reason, _ASK)
    if reason.startswith(OUTSIDE):
        return leave_unknown(reason, "name its folder: --allowed-local-media-path DIR")
    remedy = "correct the request, or leave it out"
    return reject(reason, remedy, basis="none", unread=reason_kind(reason))


def _undecided_elsewhere(reason: str) -> Admission:
    return leave_unknown(reason, "check a local copy, or add its host to --allowed-media-domains")


def _admit_offline(gate: Gate, row: Mapping[str, Any]) -> Admission:
    """Decide about a prompt for `LLM.generate`, with media in memory."""
    media = row[OFFLINE]
    if not isinstance(media, Mapping) or row.keys() & _REQUEST_FIELDS:
        raise unsupported_type(row)
    files = list[EncodedItem]()
    for one in itertools.chain.from_iterable(itertools.starmap(_items_of, media.items())):
        file = describe_item(one)
        if isinstance(file, Skipped):
            return answer_unreadable(file.reason)
        files.append(file)
    wants = ChatRequest.of_user(str(row.get("prompt", ""))).measure_context()
    return add_prompt_remedy(gate, files, wants, admit_prompt(gate, files, wants), None)


def _items_of(modality: str, value: Any) -> list[Any]:
    """The items of one entry (vllm/multimodal/parse.py, 0.32): a video's frames are one item."""
    if modality == "image" and len(getattr(value, "shape", ())) == 4:
        return list(value)
    alone = not isinstance(value, list) or (modality == "video" and all(map(_picture_size, value)))
    return [value] if alone else value


def _request_line(request: Mapping[str, Any]) -> bytes:
    """Encode the request as a line of a requests file. Raises TypeError for other mappings."""
    if not _REQUEST_FIELDS & set(request):
        raise unsupported_type(request)
    try:
        return json.dumps(request).encode()
    except (TypeError, ValueError):  # For example, it holds an image object instead of a URL.
        raise unsupported_type(request) from None
