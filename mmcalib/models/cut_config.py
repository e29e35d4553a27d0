"""Depth cut: a config with fewer layers of the same width, for engine starts on small machines.

Peak activation does not depend on depth; weights and KV cache scale with it.
"""

from __future__ import annotations

import copy
from typing import Any

from mmcalib.models.depth import (
    TEXT_KEYS,
    Config,
    depths,
    encoder_sections,
    named_layers,
    parts,
    set_layers,
    text_depth,
    text_sections,
)

# Indexes of encoder blocks that attend to the whole image; the others see windows. None is moved
# into a cut encoder: it would hold the same tensors (on vLLM's CPU backend the peaks are equal to
# the byte) and cost minutes, being quadratic in the image.
FULL_ATTENTION = "fullatt_block_indexes"
# Indexes of encoder blocks that feed the language model directly: their number is a width.
TAPS = "deepstack_visual_indexes"
# Which encoder layer the projector reads; negative counts from the end.
FEATURE_LAYERS = ("vision_feature_layer", "select_layer", "mm_vision_select_layer")
# Every k-th layer is of the other kind; k must not exceed the depth, or that kind vanishes.
PERIODS = ("sliding_window_pattern", "full_attention_interval")
# Layers of the language model that are named by index.
INDEXES = ("cross_attention_layers", "mlp_only_layers", "moe_layers")
# Lists of every layer whose names do not say so: Gemma 3n has both.
PER_LAYER = ("activation_sparsity_pattern", "intermediate_size")


def cut_depth(
    config: Config, text_layers: int | None = None, encoder_layers: int | None = None
) -> Config:
    """A copy of the config with at most that many layers; None leaves a depth alone.

    Widths stay. In the language model each kind of layer (full, sliding, MoE) is kept where the
    depth allows; an encoder stays as deep as its feature layers need. Raises ModelError when the
    language model's depth is not to be found.
    """
    cut = copy.deepcopy(config)
    if text_layers is not None:
        _cut_texts(cut, max(text_layers, 1))
    if encoder_layers is not None:
        floor = max(encoder_layers, 1, *map(_feature_floor, parts(cut)))
        for _, section, keys in encoder_sections(cut):
            true = named_layers(section, keys) or 0
            if (layers := max(floor, len(section.get(TAPS) or ()))) < true:
                set_layers(section, keys, layers)
                _cut_lists(section, true, layers)
                _cut_indexes(section, layers)
    return cut


def _cut_texts(config: Config, layers: int) -> None:
    depths(config)
    for section in text_sections(config):
        if (true := text_depth(section) or 0) <= layers:
            continue
        set_layers(section, TEXT_KEYS, layers)
        _cut_lists(section, true, layers)
        for key in INDEXES:
            if isinstance(indexes := section.get(key), list):
                section[key] = [index for index in indexes if index < layers]
        for key in PERIODS:
            if isinstance(period := section.get(key), int):
                section[key] = min(period, layers)
        # From this layer on there are windows; where there are any, one is kept.
        if isinstance(start := section.get("max_window_layers"), int):
            section["max_window_layers"] = layers if start >= true else min(start, layers - 1)
        # The last k layers read the cache of others; the cut keeps the first.
        if isinstance(shared := section.get("num_kv_shared_layers"), int):
            section["num_kv_shared_layers"] = max(0, layers - (true - shared))
        # The first k layers are dense, the rest experts; where there are experts, one is kept.
        dense = section.get("first_k_dense_replace")
        if isinstance(dense, int) and dense < true:
            section["first_k_dense_replace"] = min(dense, layers - 1)


def _cut_lists(section: Config, true: int, layers: int) -> None:
    """Shortens the lists that say something of every layer, such as `layer_types`."""
    for key, value in section.items():
        per_layer = key in PER_LAYER or ("layer" in key and key not in INDEXES)
        if per_layer and isinstance(value, list) and len(value) == true:
            section[key] = _keep_kinds(value, layers)


def _keep_kinds(values: list[Any], layers: int) -> list[Any]:
    """The first layers, the last of them replaced by kinds that would else be lost."""
    lost: list[Any] = []
    for kind in values[layers:]:
        if kind not in values[:layers] and kind not in lost and len(lost) < layers - 1:
            lost.append(kind)
    return values[: layers - len(lost)] + lost


def _cut_indexes(section: Config, layers: int) -> None:
    if full := section.get(FULL_ATTENTION):
        section[FULL_ATTENTION] = [index for index in full if index < layers]
    if taps := section.get(TAPS):
        kept = [index for index in taps if index < layers]
        whole = len(kept) == len(taps)
        section[TAPS] = kept if whole else list(range(layers - len(taps), layers))


def _feature_floor(part: Config) -> int:
    """The fewest encoder layers with which every feature layer named in the config exists."""
    named = [part[key] for key in FEATURE_LAYERS if key in part]
    flat = [index for value in named for index in (value if isinstance(value, list) else [value])]
    return max((-i if i < 0 else i + 1 for i in flat if isinstance(i, int)), default=0)
