"""Write a checkpoint folder without weights from a model's facts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmcalib.files import whole_folder
from mmcalib.models.catalogue import Geometry

# After an optional system message.
_ALTERNATION = (
    "{% set first = 1 if messages[0]['role'] == 'system' else 0 %}{% if loop.index0 >= first and "
    "(message['role'] == 'user') != ((loop.index0 - first) % 2 == 0) %}"
    "{{ raise_exception('REFUSAL') }}{% endif %}"
)


def chat_template(chat: Mapping[str, str], placeholders: Mapping[str, str]) -> str:
    """Return Jinja for messages of strings or, with `content: openai`, also of lists of parts.

    vLLM detects the format by whether the template loops over the content. `{role}` in a turn
    marker is the message's role; `{n}` in a placeholder counts the items of its modality. Without
    `assistant_start` and `assistant_end`, the assistant's turns have the same markers as others.
    With `media_roles` the media of other roles are dropped; `alternates` is a refusal's words.
    """
    body = "{{ message['content'] }}"
    if chat["content"] == "openai":
        body = _parts(placeholders, chat.get("media_roles", ""))
    start, end = chat["turn_start"], chat["turn_end"]
    answer_start = chat.get("assistant_start", start.replace("{role}", "assistant"))
    return "".join(
        (
            "{% set count = namespace(image=0, video=0, audio=0) %}",
            _marker(chat.get("start", "")),
            "{% for message in messages %}",
            _ALTERNATION.replace("REFUSAL", chat["alternates"]) if "alternates" in chat else "",
            _by_role(start, chat.get("assistant_start", start)),
            body,
            _by_role(end, chat.get("assistant_end", end)),
            "{% endfor %}",
            f"{{% if add_generation_prompt %}}{_marker(answer_start)}{{% endif %}}",
        )
    )


def _by_role(others: str, assistant: str) -> str:
    if others == assistant:
        return _marker(others)
    return (
        f"{{% if message['role'] == 'assistant' %}}{_marker(assistant)}"
        f"{{% else %}}{_marker(others)}{{% endif %}}"
    )


def _marker(text: str) -> str:
    """Convert a marker to Jinja; prints newlines, because Jinja trims those after a block."""
    return text.replace("\n", "{{ '\\n' }}").replace("{role}", "{{ message['role'] }}")


def _parts(placeholders: Mapping[str, str], roles: str) -> str:
    # An item of the modality, in all spellings of clients.
    test = "part['type'] == '{0}' or '{0}' in part or '{0}_url' in part"
    test = f"message['role'] in {roles.split()} and ({test})" if roles else test
    branches = "".join(
        f"{{% {'elif' if index else 'if'} {test.format(modality)} %}}"
        f"{{% set count.{modality} = count.{modality} + 1 %}}"
        + placeholder.replace("{n}", f"{{{{ count.{modality} }}}}")
        for index, (modality, placeholder) in enumerate(placeholders.items())
    )
    return "".join(
        (
            "{% if message['content'] is string %}{{ message['content'] }}",
            "{% else %}{% for part in message['content'] %}",
            branches,
            "{% elif 'text' in part %}{{ part['text'] }}{% endif %}",
            "{% endfor %}{% endif %}",
        )
    )


# Bytes that a byte-level BPE keeps; the others move to U+0100 and up.
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def byte_alphabet() -> list[str]:
    """Return the 256 characters of a byte-level BPE in code point order."""
    moved = len(set(range(256)) - set(PRINTABLE))
    return [chr(code) for code in (*PRINTABLE, *range(0x100, 0x100 + moved))]


def vocabulary(added: Mapping[str, int], vocab_size: int) -> dict[str, int]:
    """Map tokens to all ids below `vocab_size`, so that any output can be decoded.

    Bytes take the lowest ids that added tokens leave free; fillers, which no text has, the rest.
    """
    by_id = {token_id: token for token, token_id in added.items()}
    size = max(vocab_size, max(by_id) + 1)
    free = (token_id for token_id in range(size) if token_id not in by_id)
    by_id.update((token_id, char) for char, token_id in zip(byte_alphabet(), free, strict=False))
    return {by_id.get(token_id, f"~{token_id}"): token_id for token_id in range(size)}


def tokenizer_json(
    special: Mapping[str, int], words: Mapping[str, int], vocab_size: int
) -> dict[str, Any]:
    """Return `tokenizer.json`: byte-level BPE without merges. Each of `words` is one token."""
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
    """Return `tokenizer_config.json`; `names` has eos_token and so on. No `template`, no chat."""
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
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    ids = {**special, **words}
    return [
        (ids[token], {"content": token, **flags, "special": token in special})
        for token in sorted(ids, key=ids.__getitem__)
    ]


# Section of the fact file → file of the checkpoint.
SECTION_FILES = {
    "preprocessor": "preprocessor_config.json",
    "video_preprocessor": "video_preprocessor_config.json",
    "processor": "processor_config.json",
}


def materialise(geometry: Geometry, folder: Path) -> Path:
    """Write the checkpoint folder and return it; the same facts write the same bytes.

    Leaves a folder with the same content alone, replaces others. Load it with `load_format=dummy`.
    """
    files = checkpoint_files(geometry)
    if {path.name: path.is_file() and path.read_bytes() for path in folder.glob("*")} != files:
        with whole_folder(folder) as scratch:
            for name, content in files.items():
                (scratch / name).write_bytes(content)
    return folder


def checkpoint_files(geometry: Geometry) -> dict[str, bytes]:
    config = geometry.values("config")
    special, words = geometry.values("tokens"), geometry.values("words")
    chat = geometry.values("chat")
    template = chat_template(chat, geometry.values("placeholders")) if chat else None
    documents = {
        "config.json": config,
        **{
            file: geometry.values(section)
            for section, file in SECTION_FILES.items()
            if section in geometry.sections
        },
        "tokenizer.json": tokenizer_json(special, words, vocab_size(config)),
        "tokenizer_config.json": tokenizer_config(
            geometry.values("tokenizer"), special, words, template
        ),
    }
    return {
        name: (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode()
        for name, document in documents.items()
    }


def vocab_size(config: dict[str, Any]) -> int:
    """Return the largest vocab_size that a part of the model declares; 0 if none does."""
    nested = (vocab_size(part) for part in config.values() if isinstance(part, dict))
    return max((int(config.get("vocab_size", 0)), *nested))
