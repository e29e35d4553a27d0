"""Whether an item or a prompt fits a calibrated configuration: yes, no, or not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mmcalib.census.encoding import Encoded, Encoding, Given, encoded
from mmcalib.census.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.derive.bounds import Bound, Frames, Refused, Rule
from mmcalib.derive.server import decoded_bytes, request_refused, server_refuses
from mmcalib.engine.server import Server

Answer = Literal["fits", "no", "unknown"]
# real, blank: this very shape was measured. formula, ceiling, ladder: bounded by such a rule.
# refused: the processor takes no such item. none: nothing is known, or nothing is served.
Basis = Literal["real", "blank", "formula", "ceiling", "ladder", "refused", "none"]

_BASIS: Mapping[str, Basis] = {
    "area": "formula",
    "frames": "formula",
    "ceiling": "ceiling",
    "ladder": "ladder",
}


# A `PIL.Image.Image`, which this module does not import.
Picture = Any


@dataclass(frozen=True, slots=True)
class Known:
    """The measured cost of a shape."""

    tokens: int
    embeds: int
    basis: Literal["real", "blank"]


@dataclass(frozen=True, slots=True)
class Gate:
    """What a configuration admits, and all that is known of what items cost under it.

    `counts` has the modalities that the model takes, with their items per prompt; `refused` shapes
    that vLLM refused when they were measured. `server` says which files are let in.
    """

    budget_tokens: int
    max_model_len: int
    text_reserve_tokens: int
    counts: Mapping[Modality, int]
    known: Mapping[Shape, Known]
    refused: Mapping[Shape, str]
    rules: Mapping[Modality, Rule]
    server: Server = field(default_factory=Server)


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer for one item or prompt. `tokens` and `embeds` are exact or, without `exact`, the
    most that it can cost; None where nothing bounds it. `remedy` would make it fit, and so would
    `largest`: of the same proportions or, of sound, the same rate.
    """

    answer: Answer
    tokens: int | None
    embeds: int | None
    exact: bool
    basis: Basis
    reason: str
    remedy: str = ""
    largest: Shape | None = None

    @property
    def fits(self) -> bool:
        return self.answer == "fits"

    def fit(self, image: Picture) -> Picture:
        """A `PIL.Image`, the one that was asked about, in the largest size that fits: resized, or
        itself where it fits. Raises ValueError where no size does.
        """
        if self.fits:
            return image
        if not isinstance(self.largest, ImageShape):
            raise ValueError(f"no size of it fits: {self.reason}")
        resized: Picture = image.resize((self.largest.width_px, self.largest.height_px))
        return resized


def admit(gate: Gate, given: Given) -> Admission:
    """Whether one item fits on its own; without a remedy for its shape, which `remedies` finds.

    `fits` only if the engine admits the item whatever of its possible costs it turns out to have,
    `no` only if it rejects it even at the least.
    """
    file = encoded(given)
    shape, modality = file.shape, file.modality
    count = gate.counts.get(modality)
    if not count:
        why = f"the model takes no {modality}"
        if count == 0:
            why = f"limit_mm_per_prompt admits no {modality}"
        return Admission("no", None, None, True, "none", why)
    if refusal := server_refuses(file, gate.server):
        return Admission("no", None, None, True, "refused", refusal.reason, refusal.remedy)
    if refusal := request_refused([_decoded_bytes(gate, file)], gate.server):
        return Admission("no", None, None, False, "refused", refusal.reason, refusal.remedy)
    rule = gate.rules.get(modality)
    if rule and _is_odd(file.encoding):
        return _bounded(gate, rule, file)
    if shape in gate.refused:
        return Admission("no", None, None, True, "refused", f"vLLM: {gate.refused[shape]}")
    if known := gate.known.get(shape):
        cost = Bound(known.tokens, known.embeds, known.tokens, known.embeds)
        return _judged(gate, cost, known.basis, exact=True)
    if rule:
        return _bounded(gate, rule, file)
    return _unknown(modality)


# As release 0.33 counts them: pictures with a fourth channel, frames without.
_PICTURE_BYTES, _FRAME_BYTES = 4, 3


def _decoded_bytes(gate: Gate, file: Encoded) -> int:
    """At least so many: of a video whose loader is not known, none."""
    match file.shape:
        case ImageShape(width_px=width, height_px=height):
            return width * height * _PICTURE_BYTES
        case VideoShape(width_px=width, height_px=height) as shape:
            rule = gate.rules.get("video")
            sampling = rule.sampling if isinstance(rule, Frames) else None
            kept = next(sampling.possible(shape, file.encoding), 0) if sampling else 0
            return kept * width * height * _FRAME_BYTES
        case AudioShape():
            return decoded_bytes(file, gate.server)


def _is_odd(encoding: Encoding) -> bool:
    """Whether the loader keeps other frames of such a file than of others of its shape."""
    return encoding.sent_frames or encoding.unpromised or encoding.promised_frames > 0


def _bounded(gate: Gate, rule: Rule, file: Encoded) -> Admission:
    match rule.bound(file.shape, file.encoding):
        case Bound() as found:
            return _judged(gate, found, _BASIS[rule.kind], exact=False)
        case Refused(reason=why):
            return Admission("no", None, None, False, "refused", why)
    return _unknown(file.modality)


def _unknown(modality: Modality) -> Admission:
    why = f"no {modality} of this shape was measured, and nothing bounds what it costs"
    return Admission("unknown", None, None, False, "none", why)


def _judged(gate: Gate, cost: Bound, basis: Basis, *, exact: bool) -> Admission:
    """No if the least is too much, unknown if only the most is."""
    room = gate.max_model_len - gate.text_reserve_tokens
    answer: Answer
    if cost.least_embeds > gate.budget_tokens or cost.least_tokens > room:
        answer, how, tokens, embeds = "no", "at least ", cost.least_tokens, cost.least_embeds
    else:
        fits = cost.embeds <= gate.budget_tokens and cost.tokens <= room
        answer = "fits" if fits else "unknown"
        how, tokens, embeds = "at most ", cost.tokens, cost.embeds
    how = "" if exact else how
    if answer == "fits":
        reason = f"{how}{tokens} tokens"
    elif embeds > gate.budget_tokens:
        reason = f"{how}{embeds} tokens, the encoder cache holds {gate.budget_tokens}"
    else:
        reserve = gate.text_reserve_tokens
        reason = f"{how}{tokens} tokens + {reserve} for text, of {gate.max_model_len}"
    return Admission(answer, cost.tokens, cost.embeds, exact, basis, reason)


def admit_prompt(gate: Gate, shapes: Sequence[Given], text_bytes: int) -> Admission:
    """Whether a prompt fits: each of its items, how many there are, and all together with its text.

    A text has at most as many tokens as bytes. Where that is more than the reserve and would
    decide, the answer is unknown.
    """
    items = [admit(gate, shape) for shape in shapes]
    for answer in ("no", "unknown"):
        worst = next((item for item in items if item.answer == answer), None)
        if worst is not None:
            return worst
    if refusal := request_refused([_decoded_bytes(gate, encoded(s)) for s in shapes], gate.server):
        why, remedy = refusal.reason, refusal.remedy
        return Admission("no", *_sums(items), _weakest(items), why, remedy)
    for modality, count in Counter(shape.modality for shape in shapes).items():
        if count > gate.counts[modality]:
            why = f"{count} {modality} items, limit_mm_per_prompt admits {gate.counts[modality]}"
            return Admission("no", *_sums(items), _weakest(items), why)
    return _together(gate, items, text_bytes)


def _together(gate: Gate, items: Sequence[Admission], text_bytes: int) -> Admission:
    tokens, embeds, exact = _sums(items)
    reserve, room = gate.text_reserve_tokens, gate.max_model_len - (tokens or 0)
    most = "" if exact else "at most "
    reason = f"{most}{tokens} tokens of media"
    answer: Answer = "fits"
    if reserve > room:
        answer = "no" if exact else "unknown"
        reason += f" + {reserve} for text, of {gate.max_model_len}"
    elif text_bytes > max(reserve, room):
        answer = "unknown"
        reason += f", and its text of {text_bytes} bytes may be longer than the {room} left"
    return Admission(answer, tokens, embeds, exact, _weakest(items), reason)


def _sums(items: Sequence[Admission]) -> tuple[int | None, int | None, bool]:
    """Of items that all fit, and so have costs."""
    tokens = sum(item.tokens or 0 for item in items)
    embeds = sum(item.embeds or 0 for item in items)
    return tokens, embeds, all(item.exact for item in items)


def _weakest(items: Sequence[Admission]) -> Basis:
    """A bound where there is one among measured costs."""
    bounded = [item.basis for item in items if not item.exact]
    return next(iter(bounded or (item.basis for item in items)), "none")
