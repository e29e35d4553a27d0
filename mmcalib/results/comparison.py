"""Models of `comparison.json`: what `mmcalib run` writes for several models or GPUs."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field

from mmcalib.errors import MmcalibError
from mmcalib.results.calibration import CalibrationDocument
from mmcalib.results.memory import Memory
from mmcalib.results.part import DocumentPart, first_failed


class ComparedRun(DocumentPart):
    """One calibrated model on one GPU. Memory figures are rehearsed, and null without a GPU."""

    model: str
    gpu: str | None
    folder: str = Field(description="Subfolder with the results")
    verdict: Literal["pass", "fail"]
    starts: bool | None = None
    kv_cache_tokens: int | None = None
    kv_cache_bytes: int | None = Field(default=None, description="Negative: the shortfall")
    max_concurrency: float | None = Field(default=None, description="Full-length requests at once")
    detail_kept: float | None = Field(default=None, description="Mean share of tokens left")
    max_num_batched_tokens: int | None = None
    problem: str = Field(default="", description="Why the verdict is fail")
    remedy: str = ""

    @classmethod
    def of(cls, run: CalibrationDocument, gpu: str | None, folder: str) -> Self:
        """Summarize a finished run."""
        memory = run.memory.calibrated if gpu else Memory()
        failed = first_failed(run.checks) if run.verdict == "fail" else None
        parts = run.corpus.modalities.values()
        kept = sum(part.items * (part.kept.mean if part.kept else 1.0) for part in parts)
        return cls.from_value(
            memory,
            model=run.model.id,
            gpu=gpu,
            folder=folder,
            verdict=run.verdict,
            starts=memory.kv_cache_tokens is not None if memory.label == "rehearsed" else None,
            detail_kept=kept / run.corpus.items,
            max_num_batched_tokens=run.engine_config.get("max_num_batched_tokens"),
            problem=f"{failed.name}: {failed.detail}" if failed else "",
            remedy=failed.remedy if failed else "",
        )

    @classmethod
    def from_error(
        cls, error: MmcalibError, model: str, gpu: str | None, folder: str, *, starts: bool | None
    ) -> Self:
        """Summarize a run that ended early."""
        why: dict[str, Any] = {"problem": error.message, "remedy": error.hint}
        return cls(model=model, gpu=gpu, folder=folder, verdict="fail", starts=starts, **why)


class Comparison(DocumentPart):
    """All combinations of models and GPUs, in the order given."""

    mmcalib: str
    runs: list[ComparedRun]
