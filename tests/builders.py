"""Knobs and budgets as vLLM reports them, a gate, and values that must be there."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from mmcalib.domain.items import TextBound
from mmcalib.domain.knobs import AreaCap
from mmcalib.domain.memory import Budget
from mmcalib.domain.model import Server
from mmcalib.domain.shapes import Modality
from mmcalib.gate.admission import Gate
from mmcalib.gate.bounds import Area, Frames, Ladder, Rung, Sampling

Found = TypeVar("Found")
# Pixels of a token of Qwen2.5-VL, and the tokens of its largest image.
TOKEN_PX, LARGEST_IMAGE = 28 * 28, 16_384
# A template that writes nothing of its own.
BOUND = TextBound(item_tokens={"image": 0, "video": 0, "audio": 0}, tools_tokens=0, compared=1)
AREA = Area(factor_px=28, min_px=3136, max_px=12845056, max_aspect=200.0)
GATE = Gate(
    budget_tokens=2000,
    max_model_len=4096,
    text_reserve_tokens=1024,
    counts={"image": 2, "video": 1, "audio": 1},
    known_costs={},
    refusals={},
    rules={
        "video": Frames(Sampling("qwen2_vl", 32, 2), 2, AREA),
        "audio": Ladder(16_000, (Rung(1, 1, 1), Rung(1 << 40, 10, 10))),
    },
    server=Server(),
    text=BOUND,
)


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


def left_of_request(found: Any, *names: str) -> int:
    """The requested bytes less these figures, all of which must be known."""
    parts = [getattr(found, f"{name}_bytes") for name in ("requested", *names)]
    assert None not in parts
    return int(parts[0] - sum(parts[1:]))
