"""Cut a model's depth but not its width, so that small machines can start it.

Peak activation does not depend on depth; weights and KV cache scale with it.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from mmcalib.errors import ModelError
from mmcalib.files import link_or_copy, read_document, whole_folder
from mmcalib.text import one_line

Config: TypeAlias = dict[str, Any]

TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "llm")
ENCODER_SECTIONS = ("vision_config", "audio_config", "vision_encoder", "audio_encoder_config")
TEXT_KEYS = ("num_hidden_layers", "n_layers", "num_layers", "decoder_layers")
ENCODER_KEYS = (
    *("num_hidden_layers", "depth", "encoder_layers", "n_layers", "num_layers", "layers"),
    # Gemma 3n's audio encoder.
    "conf_num_hidden_layers",
)
# Ovis nests its encoder in its visual tokenizer.
OUTER_ENCODER, INNER_ENCODER = "visual_tokenizer_config", "backbone_config"
# An encoder-decoder in one flat config, such as Whisper.
FLAT_ENCODER_KEYS = ("encoder_layers",)
# Two blocks of each stack have every kind of tensor, and the same activation peak.
CUT_LAYERS = 2


class Depths(NamedTuple):
    """Layers of the language model, and of the deepest encoder (0 without an encoder)."""

    text_layers: int
    encoder_layers: int


def read_depths(config: Config, class_layers: int = 0) -> Depths:
    """Read the layer counts of a Hugging Face config; `class_layers` is the text depth of a config
    that leaves it to its class. Raises ModelError without a text depth.
    """
    every = (named_layers(section, TEXT_KEYS) for section in text_sections(config))
    text = [layers for layers in every if layers] or [class_layers]
    if not text[-1]:
        raise ModelError(
            "config.json does not set the language model's number of layers",
            hint="set num_hidden_layers in the model's config.json",
        )
    encoders = (named_layers(section, keys) or 0 for section, keys in encoder_sections(config))
    return Depths(text[-1], max(encoders, default=0))


def model_parts(config: Config) -> Iterator[Config]:
    """Yield the model's config, then the part of an omni model that reads media."""
    yield config
    if isinstance(thinker := config.get("thinker_config"), dict):
        yield thinker


def text_sections(config: Config) -> Iterator[Config]:
    """Yield every mapping that may describe the language model, the authoritative one last."""
    for part in model_parts(config):
        yield part
        yield from (part[name] for name in TEXT_SECTIONS if isinstance(part.get(name), dict))


def encoder_sections(config: Config) -> Iterator[tuple[Config, Sequence[str]]]:
    """Yield each encoder's mapping, and the keys that may hold its depth."""
    for part in model_parts(config):
        for name in ENCODER_SECTIONS:
            if isinstance(part.get(name), dict):
                yield part[name], ENCODER_KEYS
        outer = part.get(OUTER_ENCODER)
        if isinstance(outer, dict) and isinstance(outer.get(INNER_ENCODER), dict):
            yield outer[INNER_ENCODER], ENCODER_KEYS
        if named_layers(part, FLAT_ENCODER_KEYS):
            yield part, FLAT_ENCODER_KEYS


def named_layers(section: Config, keys: Sequence[str]) -> int | None:
    """Return the largest depth under any of the keys; None if no key has one."""
    return max((section[key] for key in keys if isinstance(section.get(key), int)), default=None)


def set_layers(section: Config, keys: Sequence[str], layers: int) -> None:
    """Write the depth under every key that holds one, else under the first key."""
    present = [key for key in keys if isinstance(section.get(key), int)]
    section.update(dict.fromkeys(present or keys[:1], layers))


# Indexes of encoder blocks that attend to the whole image; the others see windows. A cut drops
# those beyond the new depth: moved inside, they would need the same memory (on vLLM's CPU backend
# the peaks are equal to the byte), but minutes, because their time is quadratic in the image.
FULL_ATTENTION = "fullatt_block_indexes"
# Indexes of encoder blocks that feed the language model directly. Their number affects its width.
TAPS = "deepstack_visual_indexes"
# The encoder layer that the projector reads; negative values count from the end.
FEATURE_LAYERS = ("vision_feature_layer", "select_layer", "mm_vision_select_layer")
# Every k-th layer is of another kind. If k exceeds the depth, that kind disappears.
PERIODS = ("sliding_window_pattern", "full_attention_interval")
# Lists of layer indexes of the language model.
INDEXES = ("cross_attention_layers", "mlp_only_layers", "moe_layers")
# Lists with a value per layer, without "layer" in their names: Gemma 3n has two, MiniMax-M3 others.
PER_LAYER = (
    *("activation_sparsity_pattern", "intermediate_size"),
    *("sparse_attention_freq", "sparse_disable_index_value"),
)


def cut_depth(config: Config, layers: int) -> Config:
    """Return a copy of the config with at most this many layers in each stack.

    Keeps widths, the encoder's feature layers and, if the depth allows, each kind of text layer
    (full, sliding, MoE). Raises ModelError without a text depth.
    """
    cut = copy.deepcopy(config)
    _cut_texts(cut, layers)
    floor = max(layers, *map(_feature_floor, model_parts(cut)))
    for section, keys in encoder_sections(cut):
        true = named_layers(section, keys) or 0
        if (kept := max(floor, len(section.get(TAPS) or ()))) < true:
            set_layers(section, keys, kept)
            _cut_lists(section, true, kept)
            if full := section.get(FULL_ATTENTION):
                section[FULL_ATTENTION] = [index for index in full if index < kept]
            taps = section.get(TAPS) or ()
            if any(index >= kept for index in taps):
                section[TAPS] = list(range(kept - len(taps), kept))
    return cut


def _cut_texts(config: Config, layers: int) -> None:
    *outer, main = text_sections(config)
    if outer and not any(named_layers(one, TEXT_KEYS) for one in (*outer, main)):
        # The section leaves its depth, and so any list per layer, to its class.
        set_layers(main, TEXT_KEYS, layers)
    read_depths(config)
    for section in text_sections(config):
        if (true := named_layers(section, TEXT_KEYS) or 0) <= layers:
            continue
        set_layers(section, TEXT_KEYS, layers)
        _cut_lists(section, true, layers)
        for key in INDEXES:
            if isinstance(indexes := section.get(key), list):
                section[key] = [index for index in indexes if index < layers]
        for key in PERIODS:
            if isinstance(period := section.get(key), int):
                section[key] = min(period, layers)
        # Layers from this index on use windows: keep one, if there are any.
        if isinstance(start := section.get("max_window_layers"), int):
            section["max_window_layers"] = layers if start >= true else min(start, layers - 1)
        # The last k layers read the cache of others; the cut keeps the first layers.
        if isinstance(shared := section.get("num_kv_shared_layers"), int):
            section["num_kv_shared_layers"] = max(0, layers - (true - shared))
        # The first k layers are dense, the rest have experts: keep one of these, if there are any.
        dense = section.get("first_k_dense_replace")
        if isinstance(dense, int) and dense < true:
            section["first_k_dense_replace"] = min(dense, layers - 1)


def _cut_lists(section: Config, true: int, layers: int) -> None:
    """Shorten the lists with a value per layer, such as `layer_types`."""
    for key, value in section.items():
        if isinstance(value, dict):
            _cut_lists(value, true, layers)
        per_layer = key in PER_LAYER or ("layer" in key and key not in INDEXES)
        if per_layer and isinstance(value, list) and len(value) == true:
            section[key] = _keep_kinds(value, layers)


def _keep_kinds(values: list[Any], layers: int) -> list[Any]:
    """Return the first layers, with the last ones replaced by kinds that would be lost."""
    lost: list[Any] = []
    for kind in values[layers:]:
        if kind not in values[:layers] and kind not in lost and len(lost) < layers - 1:
            lost.append(kind)
    return values[: layers - len(lost)] + lost


def _feature_floor(part: Config) -> int:
    """Return the fewest encoder layers that include every feature layer of the config."""
    values = [part[key] for key in FEATURE_LAYERS if key in part]
    flat = [index for value in values for index in (value if isinstance(value, list) else [value])]
    return max((-i if i < 0 else i + 1 for i in flat if isinstance(i, int)), default=0)


# Extensions of weights, which would not match the cut config; dummy weights need no files.
WEIGHT_SUFFIXES = frozenset(
    {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".npz"}
)

# The largest on the hub take about 100 KB. A value may take a hundred times its length in memory.
MOST_CONFIG_BYTES = 1 << 24


def cut_checkpoint(source: Path, target: Path, layers: int = CUT_LAYERS) -> Path:
    """Write `target` with the cut config.json and all other files of `source` except weights.

    Returns `target`. Raises ModelError without a readable config.json, or OutputError.
    """
    cut = cut_depth(read_config(source), layers)
    with whole_folder(target) as scratch:
        for path in sorted(source.rglob("*")):
            weight = path.suffix in WEIGHT_SUFFIXES or path.name.endswith(".index.json")
            if path.is_file() and not weight:
                copy = scratch / path.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(path.resolve(), copy)
        config = scratch / "config.json"
        config.unlink()
        config.write_text(json.dumps(cut, indent=1) + "\n", encoding="utf-8")
    return target


def read_config(folder: Path) -> dict[str, object]:
    """Read the folder's config.json. Raises ModelError if it is missing or not a JSON mapping."""
    try:
        # vLLM also takes values that `read_json` does not, such as Infinity.
        config = json.loads(read_document(folder / "config.json", MOST_CONFIG_BYTES).decode())
    except RecursionError as error:
        raise ModelError(f"{folder}/config.json is nested too deeply") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelError(one_line(f"cannot read {folder}/config.json: {why}")) from error
    if not isinstance(config, dict):
        raise ModelError(f"{folder}/config.json is not a mapping")
    return config


# Parameters of a repeated block: `language_model.model.layers.3.mlp.…`, `visual.blocks.0.attn.…`.
_BLOCK = re.compile(r"^(?P<stack>.*?\b(?:layers|blocks|h))\.(?P<index>\d+)\.")
_ENCODER_WORDS = ("visual", "vision", "audio", "tower", "encoder")


def scale_to_depth(sizes: Mapping[str, int], text_layers: int, encoder_layers: int) -> int:
    """Bytes of all parameters at true depth, from their `sizes` at the cut depth by name."""
    blocks: dict[str, set[str]] = {}
    stack_bytes: dict[str, int] = {}
    total = 0
    for name, size in sizes.items():
        if block := _BLOCK.match(name):
            blocks.setdefault(block["stack"], set()).add(block["index"])
            stack_bytes[block["stack"]] = stack_bytes.get(block["stack"], 0) + size
        else:
            total += size
    for stack, indices in blocks.items():
        encoder = any(word in stack for word in _ENCODER_WORDS)
        # An encoder whose config has no depth ran whole.
        true = (encoder_layers if encoder else text_layers) or len(indices)
        total += round(stack_bytes[stack] / len(indices) * true)
    return total
