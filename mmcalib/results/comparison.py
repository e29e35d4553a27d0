"""Models and GPUs side by side, as `mmcalib run` compares them."""

from __future__ import annotations

from typing import Any, Literal, Self

from mmcalib.errors import MmcalibError
from mmcalib.results.calibration import CalibrationDocument
from mmcalib.results.memory import Memory
from mmcalib.results.part import DocumentPart, first_failed


class ComparedRun(DocumentPart):
    """One model on one GPU, calibrated. `folder` has its results below the folder of all.

    `starts`, the KV cache and `max_concurrency`, requests of full length at once, are rehearsed;
    None without a GPU. `kv_cache_bytes` below zero is what lacks. `detail_kept` is the mean, over
    the items of the corpus, of the share of its default tokens that an item keeps. `problem` is why
    the verdict is fail, `remedy` what to do about it.
    """

    model: str
    gpu: str | None
    folder: str
    verdict: Literal["pass", "fail"]
    starts: bool | None = None
    kv_cache_tokens: int | None = None
    kv_cache_bytes: int | None = None
    max_concurrency: float | None = None
    detail_kept: float | None = None
    max_num_batched_tokens: int | None = None
    problem: str = ""
    remedy: str = ""

    @classmethod
    def of(cls, found: CalibrationDocument, gpu: str | None, folder: str) -> Self:
        """A run that came to its end."""
        memory = found.memory.calibrated if gpu else Memory()
        failed = first_failed(found.checks) if found.verdict == "fail" else None
        parts = found.corpus.modalities.values()
        kept = sum(part.items * (part.kept.mean if part.kept else 1.0) for part in parts)
        return cls.showing(
            memory,
            model=found.model.id,
            gpu=gpu,
            folder=folder,
            verdict=found.verdict,
            starts=memory.kv_cache_tokens is not None if memory.label == "rehearsed" else None,
            detail_kept=kept / found.corpus.items,
            max_num_batched_tokens=found.engine_config.get("max_num_batched_tokens"),
            problem=f"{failed.name}: {failed.detail}" if failed else "",
            remedy=failed.remedy if failed else "",
        )

    @classmethod
    def ended_by(
        cls, error: MmcalibError, model: str, gpu: str | None, folder: str, *, starts: bool | None
    ) -> Self:
        """A run that ended early."""
        why: dict[str, Any] = {"problem": error.message, "remedy": error.hint}
        return cls(model=model, gpu=gpu, folder=folder, verdict="fail", starts=starts, **why)


class Comparison(DocumentPart):
    """Every model on every GPU, in the order in which they were named."""

    mmcalib: str
    runs: list[ComparedRun]
