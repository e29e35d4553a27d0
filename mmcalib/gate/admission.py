"""Decide whether an item or prompt fits a calibration."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from mmcalib.domain.items import RequestText, TextBound, download_mib
from mmcalib.domain.model import (
    AUDIO_BYTES,
    AUDIO_FILE,
    AUDIO_SECONDS,
    BODY_BYTES,
    DOWNLOAD,
    MAX_PIXELS,
    PIXELS,
    REQUEST_BYTES,
    REQUEST_DOWNLOAD,
    Server,
)
from mmcalib.domain.shapes import (
    OPEN_LENGTH_SAMPLES,
    STREAMED,
    AudioShape,
    EncodedItem,
    Fault,
    ImageShape,
    ItemLike,
    Modality,
    Picture,
    Shape,
    VideoShape,
    as_encoded_item,
    resize_picture,
)
from mmcalib.gate.bounds import Bound, BoundResult, Frames, Rule, ServerRefusal
from mmcalib.gate.fit import ContextNeeds, TokenRange, bound_text, judge_fit
from mmcalib.releases.constants import AUDIO_RATE_HZ, MIN_ANSWER_TOKENS
from mmcalib.text import GIB, MIB


@dataclass(frozen=True, slots=True)
class ShapeCost:
    """Cost of a shape in the corpus, as measured or as vLLM counts it."""

    tokens: int
    embeds: int
    basis: Literal["real", "blank", "counted"]


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """vLLM resamples audio to `rate_hz`; a clip of `crashing_samples` samples stops the engine."""

    rate_hz: int | None = AUDIO_RATE_HZ  # None: by another method, or never.
    crashing_samples: range = range(0)


DEFAULT_AUDIO_LIMITS = AudioLimits()


@dataclass(frozen=True, slots=True)
class Gate:
    """Limits of a configuration, and the known costs of items under it.

    `counts` has the items per prompt of each modality that the model takes, `refusals` the shapes
    that vLLM rejected, `text_counts` text tokens by the digests of requests. Items of an
    `encoder_decoder` model do not take context.
    """

    budget_tokens: int
    max_model_len: int
    text_reserve_tokens: int
    counts: Mapping[Modality, int]
    known_costs: Mapping[Shape, ShapeCost]
    refusals: Mapping[Shape, str]
    rules: Mapping[Modality, Rule]
    server: Server = field(default_factory=Server)
    text: TextBound = field(default_factory=TextBound)
    encoder_decoder: bool = False
    text_counts: Mapping[str, int] = field(default_factory=dict)
    audio_limits: AudioLimits = DEFAULT_AUDIO_LIMITS


# Bytes that FFmpeg's sample formats take per channel; libsndfile decodes to float32.
_SAMPLE_BYTES = {"u8": 1, "s16": 2, "s32": 4, "flt": 4, "dbl": 8, "s64": 8}
_FLOAT_BYTES = 4

# Every FFmpeg since 2003 decodes it, and all players.
_ANY_DECODER = "H.264"

# Bytes of the largest resampling kernel that a server may build for one clip. It keeps an eighth of
# that for each of 32 rates (`_get_torchaudio_resampler`, vllm/multimodal/audio.py:272, 0.32).
_MAX_KERNEL_BYTES = GIB
# From `_get_sinc_resample_kernel` (torchaudio/functional/functional.py:1305, 2.9): zero crossings
# and roll-off of its filter, and the bytes of its four 64-bit arrays that are alive together.
_CROSSINGS, _ROLL_OFF, _CELL_BYTES = 6, 0.99, 32

_UNREADABLE_SOUND: Mapping[Fault, str] = {
    "unseekable": "libsndfile cannot seek in it, and the server needs to",
    "unreadable": "libsndfile rejects it, and the server does not fall back to FFmpeg",
    "cut_short": "the file is truncated",
    "tags": "its tags are not UTF-8, so the server's PyAV cannot open it",
}
_CONVERT = "convert it to WAV or FLAC"


def find_server_refusal(
    file: EncodedItem, server: Server, hearing: AudioLimits = DEFAULT_AUDIO_LIMITS
) -> ServerRefusal | None:
    """Return the first reason why this server rejects the file, or must not receive it."""
    match file.shape:
        case AudioShape() as shape:
            return find_audio_refusal(shape, hearing) or _check_audio(file, shape, server)
        case ImageShape() as shape:
            if refusal := _check_pixels(shape, "an image", server, by_pillow=True):
                return refusal
        case VideoShape() as shape:
            by_pillow = file.encoding.sent_frames
            if refusal := _check_pixels(shape, "frames", server, by_pillow=by_pillow):
                return refusal
            if file.encoding.lone_frame and not server.lone_frames:
                why = "a clip of one frame: the server's decoder returns none"
                return ServerRefusal(why, "send the frame as an image")
            codec = file.encoding.codec
            if not server.decodes.get(codec, True):
                why = f"{codec}: the server cannot decode this codec"
                return ServerRefusal(why, f"convert it to {_ANY_DECODER}")
    return _check_download(file, server)


def find_request_refusal(
    files: Sequence[EncodedItem], decoded: Sequence[int], server: Server, body_bytes: int = 0
) -> ServerRefusal | None:
    """Return why the server rejects a whole request, by each item's decoded bytes (0.33). Downloads
    that fail and are repeated count too (`MediaRequestDownloadBudget`, vllm/connections.py).
    """
    if 0 < (most := server.limits.get(BODY_BYTES, 0)) < body_bytes:
        return _exceeds(BODY_BYTES, body_bytes, f"a body of {body_bytes:,} bytes", f"{most:,}")
    most, total = server.limits.get(REQUEST_DOWNLOAD, 0), download_mib(files)
    if 0 < most < total:
        size = f"downloads of up to {total} MiB in one request"
        refusal = _exceeds(REQUEST_DOWNLOAD, total, size, f"{most} MiB")
        return replace(refusal, sure=total - sum(file.encoding.fetched for file in files) >= most)
    most, total = server.limits.get(REQUEST_BYTES, 0), sum(decoded)
    if 0 < most < total:
        size = f"{total / MIB:.0f} MiB of decoded media in one request"
        return _exceeds(REQUEST_BYTES, total, size, f"{most / MIB:.0f} MiB")
    return None


def admitting_variables(file: EncodedItem, server: Server) -> dict[str, int]:
    """Return the least values of the server's environment that admit the file, if any can."""
    limits: dict[str, int] = {}
    while refusal := find_server_refusal(file, replace(server, limits={**server.limits, **limits})):
        if not refusal.variable:
            return {}
        limits[refusal.variable] = refusal.value
    return limits


def _check_pixels(
    shape: ImageShape | VideoShape, what: str, server: Server, *, by_pillow: bool
) -> ServerRefusal | None:
    """Check an image, or a frame; `by_pillow`: that library opens it for the server."""
    pixels = shape.width_px * shape.height_px
    if by_pillow and pixels > MAX_PIXELS:
        why = f"{what} of {pixels:,} pixels, the server's Pillow opens up to {MAX_PIXELS:,}"
        return ServerRefusal(why)
    # Zero or less: no limit. Missing in an earlier calibration: vLLM's default.
    if 0 < (most := server.limits.get(PIXELS, MAX_PIXELS)) < pixels:
        return _exceeds(PIXELS, pixels, f"{what} of {pixels:,} pixels", f"{most:,}")
    return None


def _check_audio(file: EncodedItem, shape: AudioShape, server: Server) -> ServerRefusal | None:
    encoding, mib = file.encoding, file.encoding.file_mib
    if mib > (most := server.limits.get(AUDIO_FILE, math.inf)):
        return _exceeds(AUDIO_FILE, mib, f"a file of {mib} MiB", f"{most} MiB")
    if refusal := _check_download(file, server):
        return refusal
    by_libsndfile = not (encoding.sample_format or server.torchcodec)
    if encoding.fault and not server.torchcodec:
        remedy = "export it again" if encoding.fault == "cut_short" else _CONVERT
        return ServerRefusal(_UNREADABLE_SOUND[encoding.fault], remedy)
    if by_libsndfile and encoding.claimed_samples >= OPEN_LENGTH_SAMPLES:
        why = "its header has no length, so the server treats it as endless"
        return ServerRefusal(why, "rewrite the file with the length in its header")
    believed = shape
    if encoding.claimed_samples and (by_libsndfile or encoding.sample_format):
        believed = replace(shape, num_samples=max(shape.num_samples, encoding.claimed_samples))
        file = replace(file, shape=believed)
    counted = count_packed_samples(file, server).shape
    assert isinstance(counted, AudioShape)
    seconds = counted.duration_s
    if seconds > (most := server.limits.get(AUDIO_SECONDS, math.inf)):
        length = f"{believed.duration_s:.1f} s"
        if believed != shape:
            length += f" by its header or bit rate, actually {shape.duration_s:.1f} s"
        if seconds > believed.duration_s:
            length += f", and vLLM counts its packed samples {encoding.channels} times"
        return _exceeds(AUDIO_SECONDS, math.ceil(seconds), length, f"{most} s")
    decoded = decoded_bytes(file, server)
    if decoded > (most := server.limits.get(AUDIO_BYTES, math.inf)):
        length = f"{encoding.channels} channels of {believed.duration_s:.1f} s"
        size = f"{length}, {decoded / MIB:.0f} MiB decoded"
        return _exceeds(AUDIO_BYTES, decoded, size, f"{most / MIB:.0f} MiB")
    return None


def find_audio_refusal(shape: AudioShape, hearing: AudioLimits) -> ServerRefusal | None:
    """Return why the model's server must not receive audio of this shape in any file."""
    if hearing.rate_hz is None:
        return None
    to = f"{hearing.rate_hz / 1000:g} kHz"
    if (takes := kernel_bytes(shape.sample_rate_hz, hearing.rate_hz)) > _MAX_KERNEL_BYTES:
        rate = f"audio at {shape.sample_rate_hz:,} Hz"
        why = f"{rate}: resampling it to {to} takes {takes / GIB:.1f} GiB of the server's memory"
        return ServerRefusal(why, f"resample to {to}")
    if -(-shape.num_samples * hearing.rate_hz // shape.sample_rate_hz) in hearing.crashing_samples:
        most_ms = 1000 * (hearing.crashing_samples.stop - 1) / hearing.rate_hz
        why = f"too short: it stops vLLM's engine; this model needs more than {most_ms:g} ms"
        return ServerRefusal(why, "pad it with silence")
    return None


def kernel_bytes(rate_hz: int, to_hz: int) -> int:
    """Most bytes to build torchaudio's kernel: a row per new sample until their pattern repeats."""
    shared = math.gcd(rate_hz, to_hz)
    old, new = rate_hz // shared, to_hz // shared
    if old == new:
        return 0
    filtered = math.ceil(_CROSSINGS * old / (min(old, new) * _ROLL_OFF))
    return new * (old + 2 * filtered) * _CELL_BYTES


def decoded_bytes(file: EncodedItem, server: Server) -> int:
    """Bytes of an audio clip as the server decodes it."""
    assert isinstance(file.shape, AudioShape)
    form = "" if server.torchcodec else file.encoding.sample_format.removesuffix("p")
    channels = max(1, file.encoding.channels)
    return file.shape.num_samples * channels * _SAMPLE_BYTES.get(form, _FLOAT_BYTES)


def count_packed_samples(file: EncodedItem, server: Server) -> EncodedItem:
    """Return audio with as many samples as vLLM counts: packed ones of PyAV once per channel
    (`load_audio_pyav`, vllm/multimodal/media/audio.py, 0.32).
    """
    shape, form = file.shape, file.encoding.sample_format
    if not isinstance(shape, AudioShape) or form[-1:] in ("", "p") or server.torchcodec:
        return file
    samples = shape.num_samples * max(1, file.encoding.channels)
    return replace(file, shape=replace(shape, num_samples=samples))


def _check_download(file: EncodedItem, server: Server) -> ServerRefusal | None:
    size = download_mib([file])
    for variable in (DOWNLOAD, REQUEST_DOWNLOAD):
        # Zero or less: no limit.
        if 0 < (most := server.limits.get(variable, 0)) < size:
            return _exceeds(variable, size, f"a download of {size} MiB", f"{most} MiB")
    return None


def _exceeds(variable: str, value: int, size: str, most: str) -> ServerRefusal:
    """Say why the server rejects `size`, and the setting that admits it."""
    why = f"{size}, the server takes up to {most} ({variable})"
    return ServerRefusal(why, f"{variable}={value} for the server", variable, value)


Answer = Literal["fits", "no", "unknown"]
# real, blank: an item of this shape was measured. counted: by vLLM's own count. formula, ceiling,
# ladder: bounded by that rule. refused: the processor rejects the shape. none: nothing is known, or
# the configuration admits no such item.
Basis = Literal["real", "blank", "counted", "formula", "ceiling", "ladder", "refused", "none"]


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer for one item or prompt. `tokens` and `embeds` are exact or, without `exact`, the
    most that it can cost. `remedy` makes it fit, as does `largest` with the same aspect ratio.
    `unread` is why the item, or one of the prompt, could not be read.
    """

    answer: Answer
    tokens: int | None
    embeds: int | None
    exact: bool
    basis: Basis
    reason: str
    remedy: str = ""
    largest: Shape | None = None
    unread: str = ""

    @property
    def fits(self) -> bool:
        return self.answer == "fits"

    def fit(self, item: Picture | list[Picture]) -> Picture | list[Picture]:
        """Resize the picture or the frames in question to fit, as what they are; if no size fits,
        keep the first frames that do. Raises ValueError if nothing fits.
        """
        to = self.largest
        if self.fits:
            return item
        if not isinstance(to, ImageShape | VideoShape):
            raise ValueError(f"no size fits: {self.reason}")
        if isinstance(to, ImageShape):
            return resize_picture(item, to.width_px, to.height_px)
        kept = item[: to.num_frames]
        if isinstance(item, list):
            return [resize_picture(one, to.width_px, to.height_px) for one in kept]
        return resize_picture(kept, to.width_px, to.height_px)


def reject(
    reason: str, remedy: str = "", *, basis: Basis = "refused", exact: bool = True, unread: str = ""
) -> Admission:
    """Reject an item regardless of its cost."""
    return Admission("no", None, None, exact, basis, reason, remedy, unread=unread)


def leave_unknown(reason: str, remedy: str = "") -> Admission:
    """Leave the answer unknown for lack of facts."""
    return Admission("unknown", None, None, exact=False, basis="none", reason=reason, remedy=remedy)


def admit(gate: Gate, item: ItemLike) -> Admission:
    """Judge one item: `fits` if its most cost leaves the reserve, `no` if its least is too much."""
    return admit_with_reserve(gate, item, 0 if gate.encoder_decoder else gate.text_reserve_tokens)


def admit_with_reserve(gate: Gate, item: ItemLike, reserve_tokens: int) -> Admission:
    """Judge one item with this reserve; 0 for an item of a prompt, which is judged whole."""
    file = as_encoded_item(item)
    modality = file.modality
    count = gate.counts.get(modality)
    if not count:
        why = f"the model does not take {modality}"
        if count == 0:
            why = f"limit_mm_per_prompt admits no {modality}"
        return reject(why, basis="none")
    if refusal := find_server_refusal(file, gate.server, gate.audio_limits):
        return reject(refusal.reason, refusal.remedy)
    if refusal := find_request_refusal([file], [_decoded_bytes(gate, file)], gate.server):
        return reject(refusal.reason, refusal.remedy, exact=False)
    if file.encoding.transport_stream:
        return leave_unknown(STREAMED, "remux it to MP4")
    if file.encoding.fault == "cut_short":
        return leave_unknown(_CUT_SHORT, "export it again")
    cost, basis, exact = _find_cost(gate, file)
    if isinstance(cost, Bound):
        return _judge_cost(gate, cost, basis, reserve_tokens, exact=exact)
    if isinstance(cost, ServerRefusal):
        return reject(cost.reason, cost.remedy, exact=exact)
    return leave_unknown(f"no {modality} of this shape was measured, and no rule limits its cost")


_CUT_SHORT = "the file is truncated: the server rejects it, or decodes only a part"

# Bytes per pixel that release 0.33 counts: images with a fourth channel, frames without.
_PICTURE_BYTES, _FRAME_BYTES = 4, 3


def _decoded_bytes(gate: Gate, file: EncodedItem) -> int:
    """The least decoded bytes; 0 for a video whose loader is unknown."""
    match file.shape:
        case ImageShape(width_px=width, height_px=height):
            return width * height * _PICTURE_BYTES
        case VideoShape(width_px=width, height_px=height) as shape:
            rule = gate.rules.get("video")
            sampling = rule.sampling if isinstance(rule, Frames) else None
            frames = next(sampling.possible_frames(shape, file.encoding), 0) if sampling else 0
            return frames * width * height * _FRAME_BYTES
        case AudioShape():
            return decoded_bytes(file, gate.server)


def _find_cost(gate: Gate, file: EncodedItem) -> tuple[BoundResult, Basis, bool]:
    """The file's cost if known, what it is known by, and whether it is exact."""
    encoding = file.encoding
    # Of these the loader returns other frames than of most files of their shape.
    if not (encoding.sent_frames or encoding.unpromised or encoding.promised_frames > 0):
        file = count_packed_samples(file, gate.server)
        if file.shape in gate.refusals:
            return ServerRefusal(f"vLLM: {gate.refusals[file.shape]}"), "refused", True
        if known := gate.known_costs.get(file.shape):
            return Bound(known.tokens, known.embeds, known.tokens, known.embeds), known.basis, True
    rule = gate.rules.get(file.modality)
    if rule is None:
        return None, "none", False
    return rule.bound(file.shape, encoding), rule.basis, False


def _judge_cost(
    gate: Gate, cost: Bound, basis: Basis, reserve_tokens: int, *, exact: bool
) -> Admission:
    """Judge the least and the most that an item can cost, besides the reserve."""
    least, most = (cost.least_tokens, cost.tokens) if not gate.encoder_decoder else (0, 0)
    answer: Answer
    if cost.least_embeds > gate.budget_tokens or least > gate.max_model_len - MIN_ANSWER_TOKENS:
        answer, how, tokens, embeds = "no", "at least ", cost.least_tokens, cost.least_embeds
    else:
        room = gate.max_model_len - max(reserve_tokens, MIN_ANSWER_TOKENS)
        answer = "fits" if cost.embeds <= gate.budget_tokens and most <= room else "unknown"
        how, tokens, embeds = "at most ", cost.tokens, cost.embeds
    how = "" if exact else how
    if answer == "fits":
        reason = f"{how}{tokens} tokens"
    elif embeds > gate.budget_tokens:
        reason = f"{how}{embeds} tokens, the encoder cache holds {gate.budget_tokens}"
    else:
        text = f" + {reserve_tokens} for text" if reserve_tokens else ""
        reason = f"{how}{tokens} tokens{text}, max_model_len is {gate.max_model_len}"
    return Admission(answer, cost.tokens, cost.embeds, exact, basis, reason)


def _add_costs(items: Sequence[Admission]) -> Admission:
    """Sum over the items of a prompt, none rejected; `basis` is that of a bound if any."""
    bounded = [item.basis for item in items if not item.exact]
    tokens, embeds = sum(i.tokens or 0 for i in items), sum(i.embeds or 0 for i in items)
    basis: Basis = next(iter(bounded or (item.basis for item in items)), "none")
    return Admission("fits", tokens, embeds, not bounded, basis, reason="")


def admit_prompt(
    gate: Gate, shapes: Sequence[ItemLike], request: RequestText, text: TokenRange | None = None
) -> Admission:
    """Judge the items, their number, and the whole prompt; a counted `text` replaces the bound."""
    items = [admit_with_reserve(gate, shape, 0) for shape in shapes]
    worst = {item.answer: item for item in reversed(items)}
    if "no" in worst:
        return worst["no"]
    costs, kinds = _add_costs(items), Counter(shape.modality for shape in shapes)
    # Too many items fail even if some of their costs are unknown.
    for modality, count in kinds.items():
        if count > gate.counts[modality]:
            why = f"{count} {modality} items, limit_mm_per_prompt admits {gate.counts[modality]}"
            return replace(costs, answer="no", reason=why)
    if "unknown" in worst:
        return worst["unknown"]
    files = [as_encoded_item(shape) for shape in shapes]
    decoded = [_decoded_bytes(gate, file) for file in files]
    if refusal := find_request_refusal(files, decoded, gate.server):
        answer: Answer = "no" if refusal.sure else "unknown"
        return replace(costs, answer=answer, reason=refusal.reason, remedy=refusal.remedy)
    known = [cost for cost, _, _ in (_find_cost(gate, file) for file in files)]
    least = sum(cost.least_tokens for cost in known if isinstance(cost, Bound))
    media = TokenRange(least, costs.tokens)
    words = text or bound_text(gate.text, request, kinds)
    in_context = TokenRange.exactly(0) if gate.encoder_decoder else media
    answers = request.answer_tokens, request.least_answer_tokens
    return _judge_prompt(gate, costs, ContextNeeds(in_context, words, *answers))


def _judge_prompt(gate: Gate, costs: Admission, needs: ContextNeeds) -> Admission:
    context, answer = gate.max_model_len, judge_fit(needs, gate.max_model_len)
    most, asks = needs.prompt.most, needs.answer_tokens
    if needs.text.most is None:
        words = "text of unknown length"
    else:
        of = "tokens of text" if gate.encoder_decoder else "of text"
        words = f"{'' if needs.text.exact else 'at most '}{needs.text.most} {of}"
    if not gate.encoder_decoder:
        words = f"{'' if costs.exact else 'at most '}{costs.tokens} tokens of media + {words}"
    must = f" + at least {needs.least} of answer" if needs.least > MIN_ANSWER_TOKENS else ""
    reason = f"{words}{must}, max_model_len is {context}"
    if answer == "no" and asks is not None and asks < needs.least:
        reason = f"it requests {asks} tokens, fewer than its minimum of {needs.least}"
    elif answer == "no" and asks is not None and asks > context:
        reason = f"it requests {asks} tokens, max_model_len is {context}"
    elif answer == "fits" and most is not None:
        reason = words
        wanted, left = needs.answer(gate.text_reserve_tokens), context - most
        if left < wanted:
            which = "reserved" if asks is None else "requested"
            reason += f", leaving {left} tokens for the answer, {wanted} {which}"
    return replace(costs, answer=answer, reason=reason)


@dataclass(frozen=True, slots=True)
class ChatText:
    """Text tokens of a chat that resends its history: `first_tokens` in its first prompt, and
    `turn_tokens` that each later turn adds, with the answer before it. `request` is the origin of
    their text, empty for the reserve; `assumed`: no request sets the length of an answer.
    """

    first_tokens: int
    turn_tokens: int
    request: str = ""
    assumed: bool = True

    @classmethod
    def of_reserve(cls, reserve_tokens: int) -> Self:
        """Assume that the text and answer of each turn fill the reserve."""
        return cls(max(0, reserve_tokens - MIN_ANSWER_TOKENS), reserve_tokens)


ChatLimit = Literal[
    "limit_mm_per_prompt", "VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES", "max_model_len", "encoder cache"
]


@dataclass(frozen=True, slots=True)
class ChatFit:
    """Items that a chat holds before HTTP 400, the limit that ends it, and the most items that it
    holds with any `limit_mm_per_prompt`.
    """

    items: int
    limit: ChatLimit
    most_items: int


def fit_chat(gate: Gate, item: ItemLike, cost: ShapeCost, text: ChatText) -> ChatFit:
    """Count the turns, each with one such item, that vLLM accepts of a chat.

    It checks the count while it parses the messages (`validate_num_items`,
    vllm/renderers/chat_utils.py, 0.32), then the whole prompt (`get_max_tokens`,
    vllm/entrypoints/serve/utils/api_utils.py), then each item by itself (`_validate_model_input`,
    vllm/v1/engine/input_processor.py): the encoder cache limits an item's size, not their number.
    """
    file, most = as_encoded_item(item), gate.server.limits.get(REQUEST_BYTES, 0)
    room = gate.max_model_len - MIN_ANSWER_TOKENS - text.first_tokens + text.turn_tokens
    fits: dict[ChatLimit, int] = {}
    if most > 0 and (each := _decoded_bytes(gate, file)):
        fits["VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES"] = most // each
    fits["max_model_len"] = max(0, room // (cost.tokens + text.turn_tokens))
    if cost.embeds > gate.budget_tokens:
        fits["encoder cache"] = 0
    # Of equal limits the first one answers, as in vLLM.
    limit = min(fits, key=fits.__getitem__)
    count, most_items = gate.counts.get(file.modality, 0), fits[limit]
    if count <= most_items:
        return ChatFit(count, "limit_mm_per_prompt", most_items)
    return ChatFit(most_items, limit, most_items)
