"""Compute an encoder's peak activation from its config, where the model cannot be rehearsed.

The peak is one block's feed-forward layer: its input and output, the residual stream, and the
widened activations of every position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]

# Embedded patches, residual stream, the layer's input and output.
_STREAMS = 4
# Query, key and value, their rotated and contiguous copies, and five streams.
_ROTARY_STREAMS = 12
_CHANNELS = 3
# Audio encoders name the width of their feed-forward layer either way.
_WIDENED = {"encoder_ffn_dim", "intermediate_size"}
# GLM-4V's blocks are as wide inside as the output; `intermediate_size` is its merger's.
_WIDENED_TO_OUTPUT = "glm4v"
_FRAMES_PER_PATCH = 2
_NESTED_MERGE = "img_token_compression_config"


@dataclass(frozen=True, slots=True)
class Encoder:
    """Widths of one encoder. A position (patch or audio frame) has `inputs` numbers, each of
    `input_bytes` (vLLM sends Qwen-VL's pixels as bytes). `merge` positions make a token, or each of
    at most `tiles` tiles has `per_tile` positions.
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
    # Numbers of a position that taps in earlier layers keep for the output.
    kept: int = 0

    def peak_bytes(self, items: int, tokens_per_item: int, dtype_bytes: int = 2) -> int:
        """Peak bytes in the widest layer for a batch of `items`."""
        tiles = self.tiles
        if self.tiles_follow_tokens:
            tiles = max(1, min(tiles, tokens_per_item // self.per_tile))
        each = tokens_per_item * self.merge if self.merge else tiles * self.per_tile
        widest = (3 if self.gated else 2) * self.intermediate + _STREAMS * self.hidden
        if self.rotary:
            widest = max(widest, _ROTARY_STREAMS * self.hidden)
        return items * each * (dtype_bytes * (widest + self.kept) + self.input_bytes * self.inputs)


def encoder_of(config: Config, modality: str) -> Encoder | None:
    """Return a modality's encoder from a checkpoint's config.json; None for an unknown family."""
    model = config.get("thinker_config", config)
    if modality == "audio":
        audio = model.get("audio_config", model)
        return _audio(audio) if _WIDENED & audio.keys() else None
    vision = model.get("vision_config")
    if not isinstance(vision, Mapping) or modality not in ("image", "video"):
        return None
    if vision.get("model_type") == "pixtral":
        side = model.get("spatial_merge_size", 1)
        return _patched(vision, side) if modality == "image" else None
    # MiniMax-M3 nests its merge; beside it stands a grid of tiles that nothing cuts.
    if "spatial_merge_size" in (one := {**vision, **(vision.get(_NESTED_MERGE) or {})}):
        return _merging(one)
    if "pooling_kernel_size" in vision and "hidden_size" in vision:
        return _patched(vision, vision["pooling_kernel_size"])
    sized = {"image_size", "intermediate_size"} <= vision.keys() and modality == "image"
    # A model with another size of its own encodes slices of that size, or of any.
    if sized and model.get("image_size") in (None, vision["image_size"]):
        return _tiled(model, vision)
    return None


def _merging(vision: Config) -> Encoder:
    """Qwen-VL family: patches of the image, several of which become one token."""
    # Qwen2-VL calls the encoder's width embed_dim, and its output's width hidden_size.
    hidden = int(vision.get("embed_dim", vision["hidden_size"]))
    intermediate = int(vision.get("intermediate_size", hidden * int(vision.get("mlp_ratio", 4))))
    if str(vision.get("model_type")).startswith(_WIDENED_TO_OUTPUT):
        intermediate = int(vision["out_hidden_size"])
    merge = int(vision["spatial_merge_size"]) ** 2
    taps = len(vision.get("deepstack_visual_indexes") or ())
    return Encoder(
        hidden,
        intermediate,
        gated=vision.get("hidden_act") == "silu",
        rotary=True,
        merge=merge,
        kept=taps * int(vision.get("out_hidden_size", 0)) // merge,
        inputs=_CHANNELS * _FRAMES_PER_PATCH * int(vision["patch_size"]) ** 2,
        input_bytes=1,
    )


def _patched(vision: Config, merged_side: Any) -> Encoder:
    """Pixtral, Mistral Small 3, Gemma 4: patches of an image or frame, merged in squares."""
    return Encoder(
        int(vision["hidden_size"]),
        int(vision["intermediate_size"]),
        gated=True,
        rotary=True,
        merge=int(merged_side) ** 2,
        inputs=_CHANNELS * int(vision["patch_size"]) ** 2,
    )


def _tiled(model: Config, vision: Config) -> Encoder:
    """CLIP and similar: tiles of equal size, each encoded whole."""
    side, patch = _edge(vision["image_size"]), _edge(vision["patch_size"])
    tiles = 1 + int(model.get("max_dynamic_patch") or 0)
    if pinpoints := model.get("image_grid_pinpoints"):
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
    """Return the side of a square; InternVL's -HF configs list both sides."""
    return int(size[0] if isinstance(size, list) else size)


def _audio(audio: Config) -> Encoder:
    """Whisper and similar: a clip of any length takes the positions of 30 s."""
    return Encoder(
        int(audio.get("d_model") or audio["hidden_size"]),
        int(audio.get("encoder_ffn_dim") or audio["intermediate_size"]),
        gated=False,
        per_tile=int(audio["max_source_positions"]),
        inputs=2 * int(audio.get("num_mel_bins", 80)),
    )
