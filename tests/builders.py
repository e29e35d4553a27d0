"""Knobs and budgets as vLLM reports them, and values that must be there."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from mmcalib.domain.knobs import AreaCap
from mmcalib.domain.memory import Budget
from mmcalib.domain.shapes import Modality

Found = TypeVar("Found")
# Pixels of a token of Qwen2.5-VL, and the tokens of its largest image.
TOKEN_PX, LARGEST_IMAGE = 28 * 28, 16_384


def area_cap(
    modality: Modality = "image", tokens: int = LARGEST_IMAGE, least_tokens: int = 4
) -> AreaCap:
    """Cap items at so many tokens, as Qwen2.5-VL's processor does."""
    return AreaCap(
        modality=modality,
        path=(f"{modality}s_kwargs", "size", "longest_edge"),
        value=tokens * TOKEN_PX,
        token_px=TOKEN_PX,
        least_name="shortest_edge",
        least_px=least_tokens * TOKEN_PX,
    )


def budget(tokens: int, most: Mapping[Modality, int] | None = None, **changes: Any) -> Budget:
    """Admit so many tokens to the encoder at once; the heaviest item is what is profiled."""
    items = dict(most or {})
    heaviest = max(items, key=lambda name: items[name], default=None)
    profiled = tokens // items[heaviest] if heaviest else 0
    per_prompt = dict.fromkeys(items, 1)
    plain = Budget(tokens, tokens, items, per_prompt, heaviest, profiled, {}, 32_768, tokens, 256)
    return replace(plain, **changes)


def some(value: Found | None) -> Found:
    """Return the value, which must be there."""
    assert value is not None
    return value


def expect(kind: type[Found], value: object) -> Found:
    """Return the value, which must be of this kind."""
    assert isinstance(value, kind), value
    return value
