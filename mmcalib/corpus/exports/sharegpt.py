"""ShareGPT and its kin with pictures, such as ShareGPT4V: conversations, of which vLLM's benchmarks
send what was said first (`ShareGPTDataset` in vllm/benchmarks/datasets/datasets.py, 0.32).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mmcalib.corpus.content_parts import PART_OF, text_part, url_part
from mmcalib.corpus.exported import Entry, Exported, ExportFormat, Unusable, mapping, names
from mmcalib.domain.shapes import Modality

_FEWEST_TURNS: Final = 2
_SYSTEM: Final = "system"
_MODALITIES: Final[tuple[Modality, ...]] = ("image", "video")
# Where LLaVA's data say that the medium stands; a chat template writes its own.
_MARK: Final = re.compile(r"<(?:image|video)>\n?")


def _recognises(entry: Entry) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("conversations"), list)


def _requests(entry: Mapping[str, Any]) -> Iterator[Exported | Unusable]:
    turns = [mapping(turn) for turn in entry["conversations"]]
    messages: list[dict[str, object]] = []
    if turns and turns[0].get("from") == _SYSTEM:
        messages.append({"role": _SYSTEM, "content": str(turns.pop(0).get("value", ""))})
    if len(turns) < _FEWEST_TURNS:
        yield Unusable("a conversation of less than two turns, which vLLM's benchmarks leave out")
        return
    words = _MARK.sub("", str(turns[0].get("value", "")))
    parts: list[dict[str, object]] = [
        url_part(PART_OF[modality], name)
        for modality in _MODALITIES
        for name in names(entry.get(modality))
    ]
    yield Exported(
        {"messages": [*messages, {"role": "user", "content": [*parts, text_part(words)]}]}
    )


FORMAT = ExportFormat(_recognises, _requests)
