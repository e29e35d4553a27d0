"""How many layers a Hugging Face config describes, and where in it they are named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mmcalib.errors import ModelError

Config: TypeAlias = dict[str, Any]

TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "llm")
ENCODER_SECTIONS = ("vision_config", "audio_config", "vision_encoder", "audio_encoder_config")
TEXT_KEYS = ("num_hidden_layers", "n_layers", "num_layers", "decoder_layers")
ENCODER_KEYS = (
    *("num_hidden_layers", "depth", "encoder_layers", "n_layers", "num_layers", "layers"),
    # Of the sound encoder of Gemma 3n.
    "conf_num_hidden_layers",
)
# Ovis keeps its encoder within what makes tokens of it.
OUTER_ENCODER, INNER_ENCODER = "visual_tokenizer_config", "backbone_config"
# An encoder-decoder in one flat config, such as Whisper.
FLAT_ENCODER_KEYS = ("encoder_layers",)
# Sparse configs leave the depth to their class; these are the classes' defaults, by model_type.
# Source: transformers 5.19.0.
CLASS_LAYERS = {"llama": 32, "mistral": 32, "qwen2": 32}


@dataclass(frozen=True, slots=True)
class Depths:
    """Layers of the language model and of each encoder section (`vision_config`, ...)."""

    text_layers: int
    encoders: tuple[tuple[str, int], ...]

    @property
    def encoder_layers(self) -> int:
        """The deepest encoder's layers; 0 without an encoder."""
        return max((layers for _, layers in self.encoders), default=0)


def depths(config: Config) -> Depths:
    """The layer counts of any Hugging Face config.

    Raises ModelError when the language model's depth is not to be found.
    """
    text = [layers for section in text_sections(config) if (layers := text_depth(section))]
    if not text:
        raise ModelError(
            "config.json does not say how many layers the language model has",
            hint="set num_hidden_layers in the model's config.json",
        )
    encoders = (
        (name, layers)
        for name, section, keys in encoder_sections(config)
        if (layers := named_layers(section, keys))
    )
    return Depths(text[-1], tuple(encoders))


def parts(config: Config) -> Iterator[Config]:
    """The model itself, then the part of an omni model that reads media."""
    yield config
    if isinstance(thinker := config.get("thinker_config"), dict):
        yield thinker


def text_sections(config: Config) -> Iterator[Config]:
    """Every mapping that may describe the language model, the authoritative one last."""
    for part in parts(config):
        yield part
        yield from (part[name] for name in TEXT_SECTIONS if isinstance(part.get(name), dict))


def encoder_sections(config: Config) -> Iterator[tuple[str, Config, Sequence[str]]]:
    """Every encoder: its name, the mapping that describes it, the keys that may hold its depth."""
    for part in parts(config):
        for name in ENCODER_SECTIONS:
            if isinstance(part.get(name), dict):
                yield name, part[name], ENCODER_KEYS
        outer = part.get(OUTER_ENCODER)
        if isinstance(outer, dict) and isinstance(outer.get(INNER_ENCODER), dict):
            yield OUTER_ENCODER, outer[INNER_ENCODER], ENCODER_KEYS
        if named_layers(part, FLAT_ENCODER_KEYS):
            yield "encoder", part, FLAT_ENCODER_KEYS


def text_depth(section: Config) -> int | None:
    """The depth that a text mapping names or that its class implies."""
    return named_layers(section, TEXT_KEYS) or CLASS_LAYERS.get(section.get("model_type", ""))


def named_layers(section: Config, keys: Sequence[str]) -> int | None:
    """The largest depth under any of the keys."""
    return max((section[key] for key in keys if isinstance(section.get(key), int)), default=None)


def set_layers(section: Config, keys: Sequence[str], layers: int) -> None:
    """Writes the depth under every key that holds one, or under the first key."""
    present = [key for key in keys if isinstance(section.get(key), int)]
    section.update(dict.fromkeys(present or keys[:1], layers))
