"""Checks of rehearsed memory: does it start, hold enough, and beat vLLM's defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, Protocol

from mmcalib.checks import catalogue as ids
from mmcalib.checks.check import CHANGE_SETTING, Check, Status
from mmcalib.checks.engine import prediction_check
from mmcalib.checks.facts import JudgedConfig
from mmcalib.checks.reserve import unprofiled_encoder_check
from mmcalib.domain.memory import EngineStarted, RehearsedMemory
from mmcalib.domain.traffic import HighestStep
from mmcalib.errors import ConfigRejected, MmcalibError
from mmcalib.limits.demand import FixedKvCache, RetainedStorage
from mmcalib.limits.policy import Policy
from mmcalib.releases.constants import VLLM_SLACK_BYTES
from mmcalib.text import gib, number, plural, remaining


def _kv_cache_gain(before: RehearsedMemory | None, after: RehearsedMemory) -> str:
    """The KV cache with the tuned settings and with vLLM's defaults, on one line."""
    now = f"KV cache {gib(after.kv_cache_bytes)}, {after.kv_cache_tokens:,} tokens"
    if before is None:
        return now
    if before.kv_cache_tokens is None:
        return f"{now}; vLLM does not start with its defaults ({remaining(before.kv_cache_bytes)})"
    return f"{now}; by default {gib(before.kv_cache_bytes)}, {before.kv_cache_tokens:,} tokens"


def memory_checks(
    gpu: str,
    before: RehearsedMemory | None,
    after: RehearsedMemory | None,
    failure: MmcalibError | None = None,
    figures: EngineStarted | None = None,
    concurrency: float | None = None,
) -> Iterator[Check]:
    """Check that `after` starts, has the concurrency, and agrees with an engine's `figures`.
    `before` are vLLM's defaults; `failure` ended the rehearsal.
    """
    name = ids.MEMORY_ON.of(gpu)
    if after is None and isinstance(failure, ConfigRejected):
        detail = f"vLLM does not start: {failure.reason}"
        yield Check(name, "fail", detail, failure.hint or CHANGE_SETTING)
    elif after is None:
        remedy = (failure and failure.hint) or "mmcalib rehearse --help"
        yield Check(name, "warn", f"not rehearsed: {failure}", remedy)
    elif after.kv_cache_tokens is None:
        remedy = "--max-model-len fit, a larger --gpu, or mmcalib plan"
        yield Check(name, "fail", f"vLLM does not start, rehearsed: {after.start_problem}", remedy)
    else:
        yield Check(name, "pass", f"{_kv_cache_gain(before, after)}, rehearsed")
        yield outside_check(after)
        if concurrency is not None and after.max_concurrency is not None:
            yield _concurrency_check(after, after.max_concurrency, concurrency)
        if after.budget is not None and after.encoder_peak_bytes is None:
            yield unprofiled_encoder_check(after.vllm)
        if figures is not None:
            yield prediction_check(after, figures)


def _concurrency_check(after: RehearsedMemory, most: float, wanted: float) -> Check:
    length = after.budget.max_model_len if after.budget else 0
    detail = f"{most:.2f} requests of {length:,} tokens fit at once, and "
    detail += f"--concurrency is {wanted:g}, rehearsed"
    if most >= wanted:
        return Check(ids.CONCURRENCY, "pass", detail)
    return Check(ids.CONCURRENCY, "fail", detail, f'mmcalib plan --goal "concurrency>={wanted:g}"')


def outside_check(after: RehearsedMemory) -> Check:
    """Check that what the start takes outside vLLM's reserve fits next to other processes."""
    most = after.most_utilization
    if not after.starts:
        remedy = f"--gpu-memory-utilization {most:g}" if most else "free memory on the GPU"
        return Check(ids.OUTSIDE, "fail", f"vLLM does not start: {after.start_problem}", remedy)
    if after.division.is_extensible:
        left = f"vLLM sizes its extensible KV cache last, and leaves {gib(after.spare_bytes)} free"
        return Check(ids.OUTSIDE, "pass", left)
    parts = ", ".join(f"{o.name} {gib(o.nbytes)}, {o.label}" for o in after.after_pool)
    needs = f"{gib(after.needed_outside_bytes)} ({parts})" if parts else "nothing"
    left = f"the start needs {needs} outside its reserve, where {gib(after.outside_bytes)} are free"
    for one in after.before_snapshot:
        left += f"; {one.name} took {gib(one.nbytes)} before, {one.label}"
    return Check(ids.OUTSIDE, "pass", left)


def fixed_kv_cache_check(pool: FixedKvCache, rehearsed: RehearsedMemory | None) -> Check:
    """Check a KV cache of fixed size; `rehearsed` with it, if that is possible."""
    size = gib(pool.kv_cache_memory_bytes)
    if rehearsed is None or rehearsed.kv_cache_tokens is None:
        why = rehearsed.start_problem if rehearsed else "it could not be rehearsed"
        remedy = "a smaller --max-model-len, or no --pin-kv-cache"
        detail = f"a KV cache of {size} is too small: {why}"
        return Check(ids.FIXED_KV_CACHE, "fail", detail, remedy)
    graphs = f", graphs of {len(pool.capture_sizes)} sizes" if pool.capture_sizes else ""
    detail = f"KV cache {size} of the {gib(pool.left_bytes)} left, "
    detail += f"{rehearsed.kv_cache_tokens:,} tokens{graphs}; {pool.effect}"
    return Check(ids.FIXED_KV_CACHE, "pass", detail)


def retention_check(
    bound: RetainedStorage, bytes_per_token: int, language_bytes: int, reserved_bytes: int
) -> Check:
    """Check the reserve for retained batches beside the language model's step."""
    counted, retained = bound.cache_tokens * bytes_per_token, bound.tokens * bytes_per_token
    staying = "each item that requests repeat" if bound.known else "every item"
    detail = "an item in the encoder cache retains the memory of its whole batch: at most "
    detail += f"{gib(retained)} for this corpus, while the cache counts {gib(counted)}; computed "
    detail += f"for {number(bound.batches)} batches, with {staying} staying"
    if not bound.known:
        detail += " (assumed: no request order given)"
    short = language_bytes + retained - reserved_bytes
    if short <= VLLM_SLACK_BYTES:
        return Check(ids.CACHE_RETENTION, "pass", f"{detail}; the profile reserves enough")
    detail = f"{detail}; with the language model's step that exceeds the reserve by {gib(short)}"
    remedy = "a lower gpu_memory_utilization leaves more free; a smaller max_num_batched_tokens "
    remedy += "shrinks batch and cache"
    return Check(ids.CACHE_RETENTION, "warn", detail, remedy)


class Load(Protocol):
    """Requests as served on the simulated GPU, such as `TrafficFigures` has them."""

    requests: int
    refused: list[str]
    steps: int
    highest: HighestStep | None
    reserved_bytes: int
    margin_bytes: int
    requested_bytes: int
    preemptions: int
    encoder_waits: int

    @property
    def served(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def status(self) -> Status: ...


def unserved_check(gpu: str, problem: str) -> Check:
    remedy = "mmcalib rehearse --requests FILE --verbose"
    return Check(ids.LOAD_ON.of(gpu), "skip", f"not rehearsed: {problem}", remedy)


def load_check(gpu: str, load: Load, default: Load | None, fitting: float | None) -> Check:
    """Check the highest step, which fits with `fitting` as `gpu_memory_utilization`."""
    remedy = "a lower --max-num-batched-tokens or -- --gpu-memory-utilization leaves more free"
    if load.status == "pass":
        remedy = ""
    elif fitting is not None:
        remedy = f"-- --gpu-memory-utilization {fitting:g}"
    return Check(ids.LOAD_ON.of(gpu), load.status, "; ".join(_describe_load(load, default)), remedy)


def _describe_load(load: Load, default: Load | None) -> Iterator[str]:
    items = ""
    if load.highest is not None and load.highest.encoding:
        items = f" (items of {load.highest.encoding[0]})"
    yield (
        f"{number(load.served)} of {plural(load.requests, 'request')} served, the highest of "
        f"{number(load.steps)} steps takes {gib(load.peak_bytes)}{items}; startup reserves "
        f"{gib(load.reserved_bytes)}, rehearsed"
    )
    if load.preemptions:
        yield f"{number(load.preemptions)} preempted because the KV cache is full"
    if load.encoder_waits:
        yield f"{number(load.encoder_waits)} held up by the encoder"
    if default is not None:
        yield f"by default {number(default.steps)} steps, highest {gib(default.peak_bytes)}"
    if load.refused:
        yield f"{number(len(load.refused))} rejected: {load.refused[0]}"


def comparison_check(
    before: RehearsedMemory | None,
    after: RehearsedMemory | None,
    loads: tuple[Load, Load] | None,
    decision: JudgedConfig,
    policy: Policy,
    default_problem: str = "",
) -> Check | None:
    """Compare the tuned settings with vLLM's defaults; None if not rehearsed. Fails if memory or
    concurrency is worse, no option of the user explains it, and the defaults serve the corpus;
    `default_problem` says why they do not. `loads` are with the defaults, then as tuned.
    """
    if before is None or after is None or after.kv_cache_tokens is None:
        return None
    if before.kv_cache_tokens is None or (after.starts and not before.starts):
        detail = "vLLM starts with these settings, and not with its defaults"
        return Check(ids.BETTER, "pass", detail)
    figures = list(_compared(before, after, loads))
    summary = ", ".join(f"{name} {figure}" for name, figure, _ in figures) + ", rehearsed"
    if default_problem:
        detail = f"vLLM's defaults {default_problem}; these settings do not, at this price: "
        return Check(ids.BETTER, "pass", detail + summary)
    worse = [name for name, _, is_worse in figures if is_worse]
    if not worse:
        turned = {"mm_processor_kwargs", "media_io_kwargs"} & decision.engine_args.keys()
        if turned or after.kv_cache_tokens > before.kv_cache_tokens:
            return Check(ids.BETTER, "pass", summary)
        detail = "no other setting has 2% more KV cache and reserves enough: engine.yaml only adds "
        detail += f"limits and context length: {summary}"
        return Check(ids.KEEP_DEFAULTS, "pass", detail)
    asked = policy.prefer != "quality" or policy.max_tokens_per_item
    asked = asked or policy.max_num_batched_tokens or policy.max_num_seqs
    limits = json.dumps(decision.engine_args.get("limit_mm_per_prompt", {}))
    keep = f"vLLM's defaults with --limit-mm-per-prompt '{limits}'"
    if policy.max_num_batched_tokens is not None:
        keep = "leave out --max-num-batched-tokens"
    detail = f"worse than vLLM's defaults in {' and '.join(worse)}: {summary}"
    return Check(ids.BETTER, "warn" if asked else "fail", detail, keep)


def _compared(
    before: RehearsedMemory, after: RehearsedMemory, loads: tuple[Load, Load] | None
) -> Iterator[tuple[str, str, bool]]:
    """KV cache, concurrency and load with the defaults and as tuned: (name, figures, is worse)."""
    had, has = before.kv_cache_tokens or 0, after.kv_cache_tokens or 0
    # The same bytes hold other tokens at another context: a rounded one less, or many of a window.
    contexts = {memory.budget and memory.budget.max_model_len for memory in (before, after)}
    least = before.kv_cache_bytes * (1 if len(contexts) == 1 else _AT_ANOTHER_CONTEXT)
    is_less = has < had and after.kv_cache_bytes < least
    yield "KV cache tokens", f"{had:,} → {has:,}", is_less
    usual, now = before.max_concurrency or 0, after.max_concurrency or 0
    yield "full-length requests at once", f"{usual:,.1f} → {now:,.1f}", now < usual
    if loads is not None:
        yield from _under_load(*loads, larger_steps=steps_are_larger(before, after))


def steps_are_larger(before: RehearsedMemory | None, after: RehearsedMemory | None) -> bool:
    """True if a step may take more tokens, so that counts of steps do not compare."""
    if before is None or after is None or before.budget is None or after.budget is None:
        return True
    return after.budget.max_num_batched_tokens > before.budget.max_num_batched_tokens


def serves_worse(before: Load | None, after: Load, *, larger_steps: bool) -> bool:
    """True if the same requests run worse than with vLLM's defaults, which may not start."""
    if before is None:
        return _falls_short(after.margin_bytes, 0)
    return any(worse for _, _, worse in _under_load(before, after, larger_steps=larger_steps))


def _under_load(
    before: Load, after: Load, *, larger_steps: bool
) -> Iterator[tuple[str, str, bool]]:
    left = reserve_left(before, before), reserve_left(after, before)
    figure = f"{remaining(left[0])} → {remaining(left[1])}"
    yield "reserve left under load", figure, _falls_short(left[1], left[0])
    if before.served != after.served:  # the defaults reject some
        return
    figure = f"{before.preemptions:,} → {after.preemptions:,}"
    if after.preemptions <= before.preemptions:
        yield "preemptions", figure, False
        return
    # More concurrency brings more preemptions, which is worse only if all takes more steps.
    figure += f" in {before.steps:,} → {after.steps:,} steps"
    yield "preemptions", figure, larger_steps or after.steps > before.steps


def reserve_left(load: Load, usual: Load) -> int:
    """Bytes of the reserve that load leaves, with what a lower `gpu_memory_utilization` adds."""
    return load.margin_bytes + max(0, usual.requested_bytes - load.requested_bytes)


def spends_reserve(load: Load, usual: Load) -> bool:
    """True if load takes the reserve below vLLM's own slack, unlike by default."""
    return reserve_left(load, usual) < VLLM_SLACK_BYTES <= reserve_left(usual, usual)


# Other items are profiled at another context, which moves peaks by some MB: 12 of 54,000 for
# Qwen2.5-Omni-7B. At least this part of the default's KV cache counts as the same.
_AT_ANOTHER_CONTEXT: Final = 0.999
# From this many steps for one of the default, requests are clearly slower.
_SLOWER: Final = 1.1


def is_slower(before: Load, after: Load) -> bool:
    """True if the same requests take clearly more steps."""
    return before.served == after.served and after.steps > _SLOWER * before.steps


def _falls_short(left_bytes: int, default_bytes: int) -> bool:
    """True if load exceeds the reserve by more than by default, and by more than the slack."""
    return left_bytes < min(0, default_bytes) - VLLM_SLACK_BYTES
