"""A small Gemma 4, of no checkpoint: a processor that takes one of five numbers of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib.models.catalogue import Geometry
from tests.engine.idefics3 import facts

_IMAGE, _BEGIN, _END, _VIDEO, _AUDIO = 1003, 1004, 1005, 1006, 1007

_SECTIONS: Mapping[str, Any] = {
    "config": {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "image_token_id": _IMAGE,
        "boi_token_id": _BEGIN,
        "eoi_token_id": _END,
        "video_token_id": _VIDEO,
        "audio_config": None,
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "max_position_embeddings": 8192,
            "vocab_size": 2048,
            "vocab_size_per_layer_input": 2048,
            "hidden_size_per_layer_input": 0,
        },
        "vision_config": {
            "model_type": "gemma4_vision",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "default_output_length": 280,
            "pooling_kernel_size": 3,
            "patch_size": 16,
        },
    },
    "preprocessor": {
        "processor_class": "Gemma4Processor",
        "image_processor_type": "Gemma4ImageProcessor",
        "feature_extractor_type": "Gemma4AudioFeatureExtractor",
    },
    "video_preprocessor": {
        "processor_class": "Gemma4Processor",
        "video_processor_type": "Gemma4VideoProcessor",
    },
    "processor": {"processor_class": "Gemma4Processor"},
    "tokens": {
        "<bos>": 1000,
        "<eos>": 1001,
        "<pad>": 1002,
        "<|image|>": _IMAGE,
        "<|image>": _BEGIN,
        "<image|>": _END,
        "<|video|>": _VIDEO,
        "<|audio|>": _AUDIO,
        "<|audio>": 1008,
        "<audio|>": 1009,
    },
    "tokenizer": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "model_max_length": 8192,
        "extra_special_tokens": {
            "image_token": "<|image|>",
            "boi_token": "<|image>",
            "eoi_token": "<image|>",
            "audio_token": "<|audio|>",
            "boa_token": "<|audio>",
            "eoa_token": "<audio|>",
        },
    },
    "placeholders": {"image": "<|image|>", "video": "<|video|>"},
}


def geometry() -> Geometry:
    return Geometry(
        id="tests/gemma4",
        architecture="Gemma4ForConditionalGeneration",
        modalities=("image", "video"),
        cannot_promise=(),
        sections={name: facts(section) for name, section in _SECTIONS.items()},
    )
