"""Changes that make an item or a prompt fit, each tried on the gate first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from mmcalib.domain.items import RequestText
from mmcalib.domain.shapes import (
    AudioShape,
    EncodedItem,
    ImageShape,
    ItemLike,
    Shape,
    VideoShape,
    as_encoded_item,
)
from mmcalib.gate.admission import Admission, Gate, admit, admit_prompt, admit_with_reserve
from mmcalib.gate.bounds import Area, Ceiling, Frames
from mmcalib.gate.fit import TokenRange, accepts_answer, required_answer

S = TypeVar("S", bound=Shape)

CALIBRATE = "calibrate again with such media in the corpus"
# Rounding makes costs rise and fall from one width to the next, so this many widths above the one
# found by bisection are tried one by one.
_NEAR_PX = 64
_MS = 1000


def add_remedy(gate: Gate, item: ItemLike, admission: Admission) -> Admission:
    """Add what would make the item fit; an item that fits stays as it is."""
    if admission.fits:
        return admission
    file = as_encoded_item(item)
    if not gate.counts.get(file.modality):
        remedy = "exclude it, or use a model that takes it"
        if file.modality in gate.counts:
            remedy = f"calibrate again with --count {file.modality}=1"
        return replace(admission, remedy=remedy)
    smaller = list(_smaller(gate, file))
    words = [admission.remedy, _cropped(gate, file.shape)]
    if not words[1]:
        words += [how for how, _ in smaller]
    # A new run cannot measure a rejected item.
    last = "exclude it" if admission.basis == "refused" else CALIBRATE
    remedy = " or ".join(filter(None, words)) or last
    return replace(admission, remedy=remedy, largest=smaller[-1][1] if smaller else None)


def add_prompt_remedy(
    gate: Gate,
    shapes: Sequence[ItemLike],
    request: RequestText,
    admission: Admission,
    text: TokenRange | None = None,
) -> Admission:
    """Add the remedy of the first item that does not fit, else how to split the prompt."""
    if admission.fits:
        return admission
    least = required_answer(request.least_answer_tokens)
    if not accepts_answer(request.answer_tokens, least, gate.max_model_len):
        return replace(admission, remedy=f"set max_tokens between {least} and {gate.max_model_len}")
    for shape in shapes:
        alone = admit_with_reserve(gate, shape, 0)
        if alone.answer == admission.answer:
            return add_remedy(gate, shape, alone)
    parts = count_prompts(gate, shapes, request, text)
    remedies = [f"split into {parts} prompts"] if parts else ["shorten the text"]
    if text is None and gate.text.may_refuse(request):
        remedies = ["let user and assistant alternate: the chat template refuses some orders"]
    if parts is None and text is None and not gate.text.compared:
        remedies = ["this model's text has no known limit: --allow-unknown accepts it"]
        if gate.encoder_decoder:
            remedies = ["not a chat model: check the file alone, as for /v1/audio/transcriptions"]
    if admission.remedy:
        remedies = [admission.remedy, *(remedies if parts else ())]
    for modality, most in gate.counts.items():
        count = sum(shape.modality == modality for shape in shapes)
        if count > most:
            remedies.append(f"calibrate again with --count {modality}={count}")
    return replace(admission, remedy=" or ".join(remedies))


def count_prompts(
    gate: Gate, shapes: Sequence[ItemLike], request: RequestText, text: TokenRange | None = None
) -> int | None:
    """Number of prompts to split the items into, in order, with all text each; None if none fit."""
    parts, batch = 1, list[ItemLike]()
    for shape in shapes:
        if admit_prompt(gate, [*batch, shape], request, text).fits:
            batch.append(shape)
        elif batch and admit_prompt(gate, [shape], request, text).fits:
            parts, batch = parts + 1, [shape]
        else:
            return None
    return parts if parts > 1 else None


def _smaller(gate: Gate, file: EncodedItem) -> Iterator[tuple[str, Shape]]:
    """The longest and then the largest shape that fits, each after the way to get it."""
    shape = file.shape
    if isinstance(shape, AudioShape):
        rate, most_ms = shape.sample_rate_hz, shape.num_samples * _MS // shape.sample_rate_hz
        sound = _largest(gate, file, lambda to: AudioShape(to * rate // _MS, rate), most_ms)
        if sound is not None:
            yield f"cut to {sound.duration_s:.2f} s", sound
        return
    picture = shape
    if isinstance(shape, VideoShape):
        video = shape

        def cut(to: int) -> VideoShape:
            return replace(video, num_frames=to, duration_s=to / video.fps)

        clip = _largest(gate, file, cut, video.num_frames, near=_NEAR_PX)
        if clip is not None:
            yield f"cut to {clip.num_frames} frames ({clip.duration_s:.1f} s)", clip

    def resized(to: int) -> ImageShape | VideoShape:
        height = max(1, round(to * picture.height_px / picture.width_px))
        return replace(picture, width_px=to, height_px=height)

    best = _largest(gate, file, resized, picture.width_px, near=_NEAR_PX)
    if best is not None:
        yield f"resize to {best.width_px}×{best.height_px}", best


def _largest(
    gate: Gate, file: EncodedItem, at: Callable[[int], S], below: int, *, near: int = 0
) -> S | None:
    """Bisect for the largest of the shapes at 1 to `below` - 1 that fits in such a file."""

    def fits(size: int) -> bool:
        return admit(gate, replace(file, shape=at(size))).fits

    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    most = next((n for n in range(min(low + near, below - 1), low, -1) if fits(n)), low)
    return at(most) if most else None


def _cropped(gate: Gate, shape: Shape) -> str:
    """The remedy for shapes too narrow to fit at any size."""
    rule = gate.rules.get(shape.modality)
    area = rule.area if isinstance(rule, Frames) else rule
    if not isinstance(area, Area | Ceiling) or isinstance(shape, AudioShape):
        return ""
    ratio = max(shape.width_px, shape.height_px) / min(shape.width_px, shape.height_px)
    return f"crop or pad to at most {area.max_aspect:g}:1" if ratio > area.max_aspect else ""
