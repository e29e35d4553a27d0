"""A stand-in tokenizer: 256 bytes and the true special tokens, as plain `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Bytes that a byte-level BPE writes as themselves; the others move to U+0100 and up.
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def byte_alphabet() -> list[str]:
    """The 256 characters of a byte-level BPE, in code point order."""
    moved = len(set(range(256)) - set(PRINTABLE))
    return [chr(code) for code in (*PRINTABLE, *range(0x100, 0x100 + moved))]


def vocabulary(special: Mapping[str, int], vocab_size: int) -> dict[str, int]:
    """Token → id for every id below `vocab_size`: whatever id a model emits can be decoded.

    Special tokens keep their ids, bytes take the lowest free ones, fillers the rest; without
    merges no text is ever encoded to a filler.
    """
    by_id = {token_id: token for token, token_id in special.items()}
    size = max(vocab_size, max(by_id) + 1)
    free = (token_id for token_id in range(size) if token_id not in by_id)
    by_id.update((token_id, char) for char, token_id in zip(byte_alphabet(), free, strict=False))
    return {by_id.get(token_id, f"~{token_id}"): token_id for token_id in range(size)}


def tokenizer_json(special: Mapping[str, int], vocab_size: int) -> dict[str, Any]:
    """The content of `tokenizer.json`: byte-level BPE without merges."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(token, special[token]) for token in _by_id(special)],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary(special, vocab_size),
            "merges": [],
        },
    }


def tokenizer_config(
    names: Mapping[str, Any], special: Mapping[str, int], template: str
) -> dict[str, Any]:
    """The content of `tokenizer_config.json`; `names` are tokenizer_class, eos_token and so on."""
    decoder = {
        str(special[token]): {k: v for k, v in _added_token(token, 0).items() if k != "id"}
        for token in _by_id(special)
    }
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        "clean_up_tokenization_spaces": False,
        **names,
        "chat_template": template,
    }


def _by_id(special: Mapping[str, int]) -> list[str]:
    return sorted(special, key=lambda token: special[token])


def _added_token(token: str, token_id: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": token, **flags, "special": True}
