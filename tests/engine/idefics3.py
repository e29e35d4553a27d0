"""A small Idefics3, of no checkpoint: a processor that bounds an edge and cuts into tiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib.models.catalogue import Fact, Geometry

_IMAGE, _AROUND, _WHOLE, _END = 1003, 1004, 1005, 1006
_TILES = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]

_SECTIONS: Mapping[str, Any] = {
    "config": {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "image_token_id": _IMAGE,
        "scale_factor": 4,
        "vocab_size": 2048,
        "text_config": {
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 8192,
            "vocab_size": 2048,
        },
        "vision_config": {
            "model_type": "idefics3_vision",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "image_size": 512,
            "patch_size": 16,
        },
    },
    "preprocessor": {
        "processor_class": "Idefics3Processor",
        "image_processor_type": "Idefics3ImageProcessor",
        "do_image_splitting": True,
        "size": {"longest_edge": 2048},
        "max_image_size": {"longest_edge": 512},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
    "processor": {"processor_class": "Idefics3Processor", "image_seq_len": 64},
    "tokens": {
        "<s>": 1000,
        "</s>": 1001,
        "<pad>": 1002,
        "<image>": _IMAGE,
        "<fake_token_around_image>": _AROUND,
        "<global-img>": _WHOLE,
        "<end_of_utterance>": _END,
        **{name: 1007 + number for number, name in enumerate(_TILES)},
    },
    "tokenizer": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": 8192,
    },
    "placeholders": {"image": "<image>"},
}


def geometry() -> Geometry:
    return Geometry(
        id="tests/idefics3",
        architecture="Idefics3ForConditionalGeneration",
        modalities=("image",),
        cannot_promise=(),
        sections={name: facts(section) for name, section in _SECTIONS.items()},
    )


def facts(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: facts(value) if isinstance(value, dict) else Fact(value, "stand-in", "this test")
        for name, value in values.items()
    }
