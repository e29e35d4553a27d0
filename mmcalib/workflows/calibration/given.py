"""The user's configuration, read by vLLM's own parser: what holds, and what is compared with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mmcalib.checks.check import Check
from mmcalib.checks.limits import LIMIT, as_read, options
from mmcalib.checks.limits import counts as count_limits
from mmcalib.checks.reserve import NOT_STARTED_WITH
from mmcalib.derive.policy import Policy
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.engine.config_forms import WrittenConfiguration
from mmcalib.engine.messages import ServeConfig
from mmcalib.engine.vllm_config import context_of, here, refusal, refused_flags
from mmcalib.errors import MmcalibError, UsageError, VllmRefused
from mmcalib.gpus.gpu import Gpu
from mmcalib.models import ResolvedModel, find
from mmcalib.options.given import DECIDED, TAKEN, refuse_own
from mmcalib.progress import Progress
from mmcalib.results.memory import EncoderBudget
from mmcalib.wording import flag, one_line
from mmcalib.workflows.decision.budgets import BudgetSource
from mmcalib.workflows.memory.figures import encoder_budget
from mmcalib.workflows.memory.prediction import EngineArgs, MemoryPrediction

_CACHE: Final = "mm_processor_cache_gb"
# vLLM (0.32) where a checkpoint is not quantised as it is told.
_NOT_QUANTISED: Final = re.compile(r"Cannot find the config file for (\w+)")


@dataclass(frozen=True, slots=True)
class YourConfiguration:
    """What the user serves with today. `engine_args` are those that differ from vLLM's defaults,
    without the model; `values` are all that vLLM reads. `counted`: requests say how items come
    together and again. Without them mmcalib derives neither counts nor a cache.
    """

    written: WrittenConfiguration
    engine_args: Mapping[str, Any]
    values: Mapping[str, Any]
    counted: bool = True

    @property
    def given(self) -> dict[str, Any]:
        """What mmcalib neither derives nor has an option for."""
        decided = DECIDED if self.counted else DECIDED - {_CACHE}
        return {n: value for n, value in self.engine_args.items() if n not in decided}

    @property
    def compared(self) -> list[str]:
        """What mmcalib derives, in place of this."""
        return [n for n in self.engine_args if n not in self.given and n not in TAKEN]

    def taken(self, policy: Policy) -> Policy:
        """The policy with what this configuration says of its options, where they say nothing."""
        counts = {} if self.counted else dict(self._counts())
        said = {
            name: self.engine_args[name]
            for name in TAKEN
            if name in self.engine_args and not getattr(policy, name)
        }
        # -1 leaves the context to vLLM.
        if context_of(self.engine_args) is None:
            said.pop("max_model_len", None)
        return replace(policy, **said, count={**counts, **policy.count})

    def _counts(self) -> Iterator[tuple[Modality, int]]:
        """A modality that is off may still be in the corpus."""
        limits = self.engine_args.get(LIMIT) or {}
        for modality in MODALITIES:
            if count := options(limits, modality).get("count"):
                yield modality, count


def default_args(policy: Policy, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the user says of the engine, which the default configuration has too."""
    said = {
        "max_model_len": policy.context_tokens,
        "max_num_seqs": policy.max_num_seqs,
        "gpu_memory_utilization": policy.gpu_memory_utilization,
    }
    return {**{name: value for name, value in said.items() if value is not None}, **given}


def read_yours(
    written: WrittenConfiguration,
    parse: Callable[[WrittenConfiguration], ServeConfig],
    progress: Progress,
    *,
    pinned: bool = False,
    counted: bool = True,
) -> YourConfiguration | None:
    """The configuration as vLLM's parser reads it; None where there is none. Raises UsageError
    where vLLM refuses it, or it sets what pinning the KV cache writes where that is `pinned`.
    """
    flags = (*written.written, *written.flags)
    if written.source is None and not flags:
        return None
    try:
        with progress.step("reading your configuration"):
            said = parse(written)
    except VllmRefused as error:
        said_so = refusal(error)
        if written.config is not None:
            raise UsageError(
                f"vLLM refuses {written.config}: {one_line(said_so)}",
                hint=shlex.join(["mmcalib", "validate", str(written.config)]),
            ) from error
        raise refused_flags(said_so, flags) or UsageError(
            f"vLLM does not take these flags: {one_line(said_so)}",
            hint="vllm serve --help=all lists them",
        ) from error
    if said.server:
        named = ", ".join(map(flag, said.server))
        progress.note(f"engine.yaml leaves out what only vLLM's API server has: {named}")
    args = {name: value for name, value in said.engine_args.items() if name != "model"}
    yours = YourConfiguration(written, as_read(args), said.values, counted)
    # By any of their names, such as -cc.
    refuse_own({n: v for n, v in yours.given.items() if n != _CACHE}, pinned=pinned)
    if yours.compared:
        named = ", ".join(map(flag, yours.compared))
        progress.note(f"compared with, not kept: {named}")
    return yours


def budget_yours(
    yours: YourConfiguration | None, budgets: BudgetSource
) -> tuple[EncoderBudget | None, str]:
    """vLLM's budget under it, None where there is none; and why, where vLLM refuses it."""
    if yours is None:
        return None, ""
    try:
        budget = budgets.of(yours.engine_args, build_dummy=True)
    except VllmRefused as error:
        return None, refusal(error)
    counts = {m: c.value for m, c in count_limits(yours.engine_args, budgets.opened).items()}
    return encoder_budget(budget, counts), ""


def refuse_unusable(
    prediction: MemoryPrediction,
    default: EngineArgs,
    given: Mapping[str, Any],
    flags: Sequence[str],
    resolved: ResolvedModel,
) -> None:
    """Raises UsageError where vLLM refuses the model under these arguments, and not without."""
    if not given:
        return
    try:
        prediction.rehearse(default)
    except VllmRefused as error:
        refused = error
    except MmcalibError:
        return
    else:
        return
    try:
        prediction.rehearse({k: v for k, v in default.items() if k not in given})
    except MmcalibError:
        return
    said = shlex.join(flags) or ", ".join(given)
    raise UsageError(
        f"vLLM refuses {resolved.id} with {said}: {one_line(refusal(refused))}",
        hint=_remedy(refused.reason, resolved),
    ) from refused


def _remedy(reason: str, resolved: ResolvedModel) -> str:
    found = _NOT_QUANTISED.search(reason)
    if found is None:
        return "change the flag that it names, or leave it out"
    method = found[1]
    sibling = f"{resolved.id}-{method.upper()}"
    other = f"--model {sibling}" if find(sibling) else "--model with a checkpoint that is"
    return f"this checkpoint is not quantized: {other}, or -- --quantization fp8"


def given_check(given: Mapping[str, Any], device: str, gpu: Gpu | None) -> Check | None:
    """What no engine is started with here; None where nothing is left out."""
    had = here(given, device)
    left = [name for name in given if name not in had]
    if not left:
        return None
    names = ", ".join(map(flag, left))
    why = "they need a GPU, and tokens and encoder budget do not depend on them"
    if gpu is None:
        return Check(
            NOT_STARTED_WITH.of(names),
            "warn",
            f"{why}; what memory they leave is not known",
            "--gpu NAME rehearses them",
        )
    return Check(NOT_STARTED_WITH.of(names), "skip", f"{why}; memory on {gpu.name} is rehearsed")
