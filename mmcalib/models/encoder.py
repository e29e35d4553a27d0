"""What an encoder holds at its widest moment, from its config alone: a check on the rehearsal.

Nothing of vLLM is asked. One block's feed-forward layer is the widest: what goes in and what comes
out of it, the residual stream, and for every position the widened activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]

# Embedded patches, residual stream, the layer's input and output.
_STREAMS = 4
# Query, key and value, their turned and dense copies, and five streams.
_ROTARY_STREAMS = 12
_CHANNELS = 3
# Either of the names by which sound encoders know their feed-forward layer's width.
_WIDENED = {"encoder_ffn_dim", "intermediate_size"}
_FRAMES_PER_PATCH = 2


@dataclass(frozen=True, slots=True)
class Encoder:
    """Widths of one encoder. Per position (patch or audio frame) it takes `inputs` numbers of
    `input_bytes`; vLLM sends Qwen-VL's pixels as bytes. `merge` positions make a token, or each of
    at most `tiles` tiles has `per_tile`.
    """

    hidden: int
    intermediate: int
    gated: bool
    rotary: bool = False
    merge: int = 0
    per_tile: int = 0
    tiles: int = 1
    tiles_follow_tokens: bool = False
    inputs: int = 0
    input_bytes: int = 2

    def peak_bytes(self, items: int, tokens_per_item: int, dtype_bytes: int = 2) -> int:
        """Bytes alive in the widest layer of a batch of such items."""
        tiles = self.tiles
        if self.tiles_follow_tokens:
            tiles = max(1, min(tiles, tokens_per_item // self.per_tile))
        each = tokens_per_item * self.merge if self.merge else tiles * self.per_tile
        widest = (3 if self.gated else 2) * self.intermediate + _STREAMS * self.hidden
        if self.rotary:
            widest = max(widest, _ROTARY_STREAMS * self.hidden)
        return items * each * (dtype_bytes * widest + self.input_bytes * self.inputs)


def encoder_of(config: Config, modality: str) -> Encoder | None:
    """The encoder for a modality, by a checkpoint's config.json; None for an unknown family."""
    whole = config.get("thinker_config", config)
    if modality == "audio":
        audio = whole.get("audio_config", whole)
        return _audio(audio) if _WIDENED & audio.keys() else None
    vision = whole.get("vision_config")
    if not isinstance(vision, Mapping) or modality not in ("image", "video"):
        return None
    if vision.get("model_type") == "pixtral":
        side = whole.get("spatial_merge_size", 1)
        return _patched(vision, side) if modality == "image" else None
    if "spatial_merge_size" in vision:
        return _merging(vision)
    if "pooling_kernel_size" in vision and "hidden_size" in vision:
        return _patched(vision, vision["pooling_kernel_size"])
    # MiniCPM-V 4.6 encodes slices of any size whole.
    sized = {"image_size", "intermediate_size"} <= vision.keys() and "insert_layer_id" not in whole
    if sized and modality == "image":
        return _tiled(whole, vision)
    return None


def _merging(vision: Config) -> Encoder:
    """The Qwen-VL family: patches of the image itself, some of which become one token."""
    # Qwen2-VL calls the encoder's width embed_dim, and hidden_size what leaves it.
    hidden = int(vision.get("embed_dim", vision["hidden_size"]))
    intermediate = int(vision.get("intermediate_size", hidden * int(vision.get("mlp_ratio", 4))))
    return Encoder(
        hidden,
        intermediate,
        gated=vision.get("hidden_act") == "silu",
        rotary=True,
        merge=int(vision["spatial_merge_size"]) ** 2,
        inputs=_CHANNELS * _FRAMES_PER_PATCH * int(vision["patch_size"]) ** 2,
        input_bytes=1,
    )


def _patched(vision: Config, merged_side: Any) -> Encoder:
    """Pixtral, Mistral Small 3, Gemma 4: patches of an image or frame, squares of them merged."""
    return Encoder(
        int(vision["hidden_size"]),
        int(vision["intermediate_size"]),
        gated=True,
        rotary=True,
        merge=int(merged_side) ** 2,
        inputs=_CHANNELS * int(vision["patch_size"]) ** 2,
    )


def _tiled(whole: Config, vision: Config) -> Encoder:
    """CLIP and its heirs: the image is cut into tiles of one size, each encoded whole."""
    side, patch = _edge(vision["image_size"]), _edge(vision["patch_size"])
    tiles = 1 + int(whole.get("max_dynamic_patch") or 0)
    if pinpoints := whole.get("image_grid_pinpoints"):
        tiles = 1 + max((width // side) * (height // side) for width, height in pinpoints)
    return Encoder(
        int(vision["hidden_size"]),
        int(vision["intermediate_size"]),
        gated=False,
        per_tile=(side // patch) ** 2,
        tiles=tiles,
        tiles_follow_tokens=bool(pinpoints),
        inputs=_CHANNELS * patch**2,
    )


def _edge(size: Any) -> int:
    """Of a square, which InternVL's -HF configs name by both sides."""
    return int(size[0] if isinstance(size, list) else size)


def _audio(audio: Config) -> Encoder:
    """Whisper and its heirs: 30 s are as many positions, however short the clip."""
    return Encoder(
        int(audio.get("d_model") or audio["hidden_size"]),
        int(audio.get("encoder_ffn_dim") or audio["intermediate_size"]),
        gated=False,
        per_tile=int(audio["max_source_positions"]),
        inputs=2 * int(audio.get("num_mel_bins", 80)),
    )
