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


def vocabulary(added: Mapping[str, int], vocab_size: int) -> dict[str, int]:
    """Token → id for every id below `vocab_size`: whatever id a model emits can be decoded.

    Added tokens keep their ids, bytes take the lowest free ones, fillers the rest; without
    merges no text is ever encoded to a filler.
    """
    by_id = {token_id: token for token, token_id in added.items()}
    size = max(vocab_size, max(by_id) + 1)
    free = (token_id for token_id in range(size) if token_id not in by_id)
    by_id.update((token_id, char) for char, token_id in zip(byte_alphabet(), free, strict=False))
    return {by_id.get(token_id, f"~{token_id}"): token_id for token_id in range(size)}


def tokenizer_json(
    special: Mapping[str, int], words: Mapping[str, int], vocab_size: int
) -> dict[str, Any]:
    """The content of `tokenizer.json`: byte-level BPE without merges.

    `words` are the few plain pieces of text that must be one token each.
    """
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, **token} for number, token in _added(special, words)],
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
            "vocab": vocabulary({**special, **words}, vocab_size),
            "merges": [],
        },
    }


def tokenizer_config(
    names: Mapping[str, Any],
    special: Mapping[str, int],
    words: Mapping[str, int],
    template: str | None,
) -> dict[str, Any]:
    """The content of `tokenizer_config.json`; `names` are tokenizer_class, eos_token and so on.

    Without a template the model does not chat.
    """
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(number): token for number, token in _added(special, words)},
        "clean_up_tokenization_spaces": False,
        **names,
        **({} if template is None else {"chat_template": template}),
    }


def _added(
    special: Mapping[str, int], words: Mapping[str, int]
) -> list[tuple[int, dict[str, Any]]]:
    """Every added token under its id, in order of ids."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    ids = {**special, **words}
    return [
        (ids[token], {"content": token, **flags, "special": token in special})
        for token in sorted(ids, key=ids.__getitem__)
    ]
