"""What is started: each model by default, under size hints alone, and calibrated."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmcalib.domain.shapes import AudioShape, ImageShape

# `LLM` and `vllm serve` have other defaults, and a smaller card has others still: said outright,
# rehearsal and start are of one configuration.
BATCHED_TOKENS = 8192
SEQUENCES = 128
# vLLM's default since 0.20.
UTILIZATION = 0.92
# A cap of 1,280 tokens an image for Qwen2-VL's family, some 1,000 by 1,000 pixels.
CAP_PX = 1_003_520
HINT = {"count": 1, "width": 512, "height": 512}
# What a case was seen to take at most, before any was: start, graphs, burst.
EXPECTED_S = 60.0
GRAPHS_S = 60.0
BURST_S = 15.0


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration of one model. `burst` is the item that is sent to it `burst_items` times;
    None sends nothing.
    """

    model: str
    kind: str
    engine_args: Mapping[str, Any]
    burst: ImageShape | AudioShape | None = None
    burst_items: int = 12
    runner: str = "auto"
    graphs: bool = False
    card_gib: float | None = None
    layers: int | None = None

    @property
    def extra_s(self) -> float:
        """Seconds that it may take beyond a plain start."""
        return GRAPHS_S * self.graphs + BURST_S * (self.burst is not None)

    @property
    def key(self) -> str:
        """What names the case on the command line and in the results."""
        name = self.model.rpartition("/")[2].lower()
        parts = [name, self.kind, "graphs" if self.graphs else "eager", self.runner]
        if self.card_gib is not None:
            parts.append(f"{self.card_gib:g}gib")
        share = self.engine_args.get("gpu_memory_utilization")
        if share is not None and share != UTILIZATION:
            parts.append(f"{share:.3f}")
        return ":".join(parts)


@dataclass(frozen=True, slots=True)
class Model:
    """A bundled geometry, the limits that hint and cap make of it, and the largest item that vLLM
    admits under either, as often as it takes to fill more than one step.
    """

    id: str
    hint: Mapping[str, Any]
    calibrated: Mapping[str, Any]
    largest: ImageShape | AudioShape | None = None
    items: int = 12


_QWEN: dict[str, Any] = {
    "hint": {"limit_mm_per_prompt": {"image": HINT, "video": 0}},
    "calibrated": {
        "limit_mm_per_prompt": {"image": 1, "video": 0},
        "mm_processor_kwargs": {"max_pixels": CAP_PX},
    },
}
_AUDIO: dict[str, Any] = {
    "hint": {"limit_mm_per_prompt": {"audio": {"count": 1, "length": 80_000}}},
    # No option caps a clip: fewer in a step is what is left.
    "calibrated": {"limit_mm_per_prompt": {"audio": 1}, "max_num_batched_tokens": 4096},
}
# 91 by 90 tokens: what a budget of 8,192 admits.
MODELS = (
    Model("Qwen/Qwen2.5-VL-3B-Instruct", largest=ImageShape(2548, 2520), **_QWEN),
    Model("Qwen/Qwen2.5-VL-7B-Instruct", largest=ImageShape(2548, 2520), **_QWEN),
    Model(
        "Qwen/Qwen3-VL-2B-Instruct",
        hint=_QWEN["hint"],
        calibrated={
            "limit_mm_per_prompt": {"image": 1, "video": 0},
            "mm_processor_kwargs": {"size": {"shortest_edge": 65_536, "longest_edge": 1_310_720}},
        },
        largest=ImageShape(2912, 2880),
    ),
    Model(
        "OpenGVLab/InternVL2-2B",
        hint={"limit_mm_per_prompt": {"image": HINT}},
        calibrated={
            "limit_mm_per_prompt": {"image": 1},
            "mm_processor_kwargs": {"max_dynamic_patch": 4},
        },
        largest=ImageShape(1792, 1344),
    ),
    Model(
        "google/gemma-3-4b-it",
        hint={"limit_mm_per_prompt": {"image": HINT}},
        calibrated={"limit_mm_per_prompt": {"image": 1}, "max_num_batched_tokens": 4096},
        largest=ImageShape(896, 896),
        items=48,
    ),
    Model("Qwen/Qwen2-Audio-7B-Instruct", largest=AudioShape(480_000, 16_000), items=24, **_AUDIO),
    # Takes no chat messages: it is started alone.
    Model("openai/whisper-large-v3", **_AUDIO),
)
TRAP, CALIBRATED = "hint-only", "calibrated"
# Graphs take a minute to compile and are an allowance: one model shows them.
_WITH_GRAPHS = MODELS[0]


def cases(
    *, runner: str = "auto", card_gib: float | None = None, utilization: float = UTILIZATION
) -> Iterator[Case]:
    """All cases, the most telling first. On a smaller card the smallest model alone, with the
    share of it that the engine asks for.
    """
    common = {
        "max_num_batched_tokens": BATCHED_TOKENS,
        "max_num_seqs": SEQUENCES,
        "gpu_memory_utilization": utilization,
    }
    for model in MODELS[:1] if card_gib is not None else MODELS:
        for kind, args in (("default", {}), (TRAP, model.hint), (CALIBRATED, model.calibrated)):
            # On a smaller card the default's video needs more than there is, which is its result.
            sent, given = (model.largest, model.items), {**common, **args}
            yield Case(model.id, kind, given, *sent, runner, card_gib=card_gib)
        if model is _WITH_GRAPHS and card_gib is None:
            args = {**common, **model.calibrated}
            yield Case(model.id, CALIBRATED, args, runner=runner, graphs=True)


def on_cpu() -> Case:
    """One small case for vLLM's CPU backend: two layers of each stack, small images."""
    return Case(
        MODELS[0].id,
        CALIBRATED,
        {
            "limit_mm_per_prompt": {"image": 1, "video": 0},
            "mm_processor_kwargs": {"max_pixels": 401_408},
            "max_model_len": 4096,
            "max_num_batched_tokens": 1024,
            "max_num_seqs": 8,
        },
        burst=ImageShape(1280, 960),
        layers=2,
    )


def wanted(found: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """Those whose key holds any of the names; all of them without one."""
    return [case for case in found if not names or any(name in case.key for name in names)]


def next_case(
    found: Sequence[Case], done: Collection[str], left_s: float, took_s: Sequence[float] = ()
) -> Case | None:
    """The first case not done that is expected to end within `left_s`; None for none.

    `took_s` are seconds of plain starts that already ran; the slowest of them is expected.
    """
    plain_s = max(took_s, default=EXPECTED_S)
    for case in found:
        if case.key not in done and plain_s + case.extra_s <= left_s:
            return case
    return None
