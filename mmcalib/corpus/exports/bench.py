"""Data sets of load generators: `vllm bench serve --dataset-name custom` and its kin, and columns
of GuideLLM (`GenerativeColumnMapper` in guidellm/data/preprocessors/mappers.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mmcalib.corpus.content_parts import PART_OF, text_part, url_part
from mmcalib.corpus.custom import is_custom
from mmcalib.corpus.exported import Entry, Exported, ExportFormat, Unusable, names, tokens
from mmcalib.corpus.exports.openai import sent

# vLLM's, then GuideLLM's.
_ANSWERS: Final = ("output_tokens", "output_tokens_count", "completion_tokens_count")
_SYSTEM: Final = ("system_prompt", "prefix")
# GuideLLM's names of columns that vLLM's benchmarks do not have.
_WORDS: Final = ("prompt", "instruction", "question")
_MEDIA: Final = {
    **dict.fromkeys(("image", "picture", "photo", "img"), PART_OF["image"]),
    **dict.fromkeys(("video", "clip", "movie"), PART_OF["video"]),
    **dict.fromkeys(("audio", "sound", "voice", "speech"), PART_OF["audio"]),
}


def _recognises(entry: Entry) -> bool:
    return isinstance(entry, Mapping) and (is_custom(entry) or _is_table(entry))


def _is_table(entry: Mapping[str, Any]) -> bool:
    return bool(entry.keys() & _WORDS) or any(isinstance(entry.get(name), str) for name in _MEDIA)


def _requests(entry: Mapping[str, Any]) -> Iterator[Exported | Unusable]:
    answered = tokens(*(entry.get(name) for name in _ANSWERS))
    columns = [
        url_part(part_type, name)
        for column, part_type in _MEDIA.items()
        for name in names(entry.get(column))
    ]
    if "content" in entry or "image_files" in entry or not (columns or _words(entry)):
        yield Exported(entry, sent(entry), answered)
        return
    system = next((entry[name] for name in _SYSTEM if isinstance(entry.get(name), str)), "")
    before = [{"role": "system", "content": system}] if system else []
    content = [*columns, *(text_part(words) for words in filter(None, [_words(entry)]))]
    messages = [*before, {"role": "user", "content": content}]
    yield Exported({"messages": messages}, sent(entry), answered)


def _words(entry: Mapping[str, Any]) -> str:
    return next((entry[name] for name in _WORDS if isinstance(entry.get(name), str)), "")


FORMAT = ExportFormat(_recognises, _requests)
