"""What vLLM's processors write into a prompt for sounds, asked by their lengths alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from vllm.multimodal.parse import AudioProcessorItems, MultiModalDataItems

# What processors hand on of a sound's features, and count its placeholder by: their number, or a
# mask of them (Qwen2.5-Omni the one, Qwen2-Audio and Audio Flamingo the other).
_LENGTHS, _MASK = "audio_feature_lengths", "feature_attention_mask"
# Masks of so many sounds are held at once.
_AT_A_TIME = 250


class _Features(dict[str, Any]):
    """In place of processed items: of all that is in them, how many features each has."""

    def get_data(self) -> dict[str, Any]:
        return self


def feature_frames(item: Any) -> int | None:
    """How many frames of features a processed sound has, None where nothing says so."""
    data = item.get_data()
    found = data.get(_LENGTHS, data.get(_MASK))
    return None if found is None else int(found.sum())


def resampled_samples(processor: Any, media: Any) -> int:
    """Samples of a loaded sound at the rate to which vLLM resamples it for this model."""
    items = processor.info.parse_mm_data({"audio": [media]})
    return int(items.get_items("audio", AudioProcessorItems).get_audio_length(0))


def framing(processor: Any) -> tuple[int, int] | None:
    """Samples from one frame to the next, and those up to which a sound is padded (0 if unknown);
    None where the processor has no extractor of features that says so.
    """
    extractor = getattr(processor.info.get_hf_processor(), "feature_extractor", None)
    hop = getattr(extractor, "hop_length", None)
    return (int(hop), int(getattr(extractor, "n_samples", 0))) if hop else None


def sound_embeds(
    processor: Any, samples: Sequence[int], frames: Sequence[int] = ()
) -> Iterator[int | None]:
    """Embeds of sounds of so many samples at the model's rate and, where known, frames of features:
    as the processor's own prompt updates have them. None of a sound that these refuse.
    """
    for start in range(0, len(samples), _AT_A_TIME):
        part = slice(start, start + _AT_A_TIME)
        update = _update(processor, samples[part], frames[part])
        for index in range(len(samples[part])):
            try:
                content = update.resolve(index).content
                mask = content.is_embed and content.is_embed(content.full)
            except Exception:  # noqa: BLE001 - then the sound is measured
                yield None
            else:
                yield len(content.full) if mask is None else int(mask.sum())


def _update(processor: Any, samples: Sequence[int], frames: Sequence[int]) -> Any:
    """The one for sounds. Raises ValueError where there are several."""
    # As long as the sound, in the memory of one sample.
    silence = [np.broadcast_to(np.float32(0), (number,)) for number in samples]
    items = MultiModalDataItems({"audio": AudioProcessorItems(silence)})
    features = _Features()
    if frames:
        features[_LENGTHS] = lengths = torch.tensor(frames)
        features[_MASK] = torch.arange(max(frames)) < lengths[:, None]
    updates = processor._get_prompt_updates(items, {}, features)
    (update,) = (one for one in updates if one.modality == "audio")
    return update
