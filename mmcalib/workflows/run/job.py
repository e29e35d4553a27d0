"""A calibration job and its results so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmcalib.admission.calibration import Calibration
from mmcalib.derive.policy import Policy
from mmcalib.domain.items import Skipped
from mmcalib.engine.config_forms import WrittenConfiguration, read_configuration
from mmcalib.errors import UsageError
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import cache_dir
from mmcalib.options.run import (
    PROBE,
    SAMPLE_PER_MODALITY,
    STARTUP_BUDGET_S,
    Device,
    ProbeOptions,
    RunOptions,
    Validate,
    build_policy,
    reject_derived_flags,
)


@dataclass(frozen=True, slots=True)
class Job:
    """The inputs and options of one calibration. Without a `gpu` mmcalib predicts no memory, and
    a policy with a concurrency raises UsageError. `config` is the user's present configuration.
    `engine_args` are the server's further arguments by vLLM's names; those that a calibration
    derives or has options for raise UsageError.
    """

    model: str
    data: Sequence[str | Path]
    requests: Sequence[Path] = ()
    allowed_root: Path | None = None
    policy: Policy = field(default_factory=Policy)
    validate: Validate = "replay"
    startup_budget_s: float = STARTUP_BUDGET_S
    sample: int = SAMPLE_PER_MODALITY
    cache_dir: Path | None = None
    gpu: Gpu | None = None
    allowed_media_domains: Sequence[str] = ()
    probe: ProbeOptions = PROBE
    device: Device = "cpu"
    pin_kv_cache: bool = False
    config: WrittenConfiguration = field(default_factory=WrittenConfiguration)
    engine_args: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        options: RunOptions,
        *,
        gpu: Gpu | None,
        policy: Policy | None = None,
        probe: ProbeOptions = PROBE,
        flags: Sequence[str] = (),
        engine_args: Mapping[str, Any] | None = None,
    ) -> Job:
        """Make the job of these options. Raises UsageError for a bad file or without a model."""
        config = read_configuration(options.config, flags, options.model)
        if config.model_name is None:
            raise UsageError("no model given", hint="--model MODEL, or --config FILE with one")
        return cls(
            model=config.model_name,
            data=tuple(options.data or ()),
            requests=tuple(options.requests or ()),
            allowed_root=options.allowed_local_media_path,
            policy=policy or build_policy(options),
            validate=options.validate,
            startup_budget_s=options.startup_budget_s,
            sample=options.sample,
            gpu=gpu,
            allowed_media_domains=tuple(options.allowed_media_domains or ()),
            probe=probe,
            device=options.device,
            pin_kv_cache=options.pin_kv_cache,
            config=config,
            engine_args=engine_args or {},
        )

    def __post_init__(self) -> None:
        reject_derived_flags(self.engine_args, pinned=self.pin_kv_cache)
        if self.policy.concurrency is not None and self.gpu is None:
            raise UsageError("--concurrency needs --gpu", hint="--gpu L4")
        if self.pin_kv_cache and self.gpu is None:
            raise UsageError("--pin-kv-cache needs --gpu", hint="--gpu L4")

    @property
    def cache(self) -> Path:
        """The folder for results that other jobs reuse."""
        return self.cache_dir or cache_dir()


@dataclass(slots=True)
class RunOutcome:
    """The calibration after each step of a run, and all skipped items."""

    calibration: Calibration | None = None
    skipped: list[Skipped] = field(default_factory=list)
    on_change: Callable[[RunOutcome], None] = lambda outcome: None

    def update(self, calibration: Calibration | None) -> None:
        self.calibration = calibration
        self.on_change(self)
