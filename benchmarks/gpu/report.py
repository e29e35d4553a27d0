"""The results in Markdown: predicted beside measured, part by part, and what the bursts did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pages import page

from gpu.results import Result
from gpu.scores import disagreed, scores
from mmcalib.checks.engine import Component
from mmcalib.text import GIB

CPU_MARK = "**CPU: shows that the program runs, compares nothing.**"
NAMED = ["weights", "encoder peak", "language model peak", "sampler peak", "CUDA graphs"]


def render(results: Sequence[Result], gpu: str, vllm: str, first_pools: Mapping[str, int]) -> str:
    """The results of one GPU and one vLLM; `first_pools` were predicted before the measurement."""
    return page(
        Path(__file__).with_name("page.md.j2"),
        {
            "gib": lambda nbytes: "–" if nbytes is None else f"{nbytes / GIB:.2f}",
            "number": lambda value: "–" if value is None else f"{value:,}",
            "cell": lambda text: " ".join(text.replace("|", "\\|").split()),
            "pair": _pair,
        },
        results=results,
        gpu=gpu,
        vllm=vllm,
        first=first_pools,
        named=NAMED,
        on_cpu=all(one.device == "cpu" for one in results),
        cpu_mark=CPU_MARK,
        scores=scores(results),
        disagreed=disagreed(results),
        GIB=GIB,
    )


def _pair(part: Component | None) -> str:
    if part is None or not (part.predicted or part.measured):
        return "–"
    return f"{part.predicted / GIB:.3f} / {part.measured / GIB:.3f}"
