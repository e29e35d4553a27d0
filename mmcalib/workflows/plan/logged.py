"""A log as the report shows it: what it said, of which release, and how far a rehearsal is."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.derive.demand import ObservedOom
from mmcalib.derive.logs.closure import closure_words
from mmcalib.derive.logs.log_failures import failure_words
from mmcalib.derive.logs.log_release import release_words
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.result.logged import ClosedSum, Logged, PartApart, ReleaseOfLog
from mmcalib.result.memory import Memory
from mmcalib.workflows.plan.from_log import ServerLog
from mmcalib.workflows.plan.log_gpu import total_bytes
from mmcalib.workflows.plan.standing import Standing


def logged(
    found: ServerLog, base: Rehearsed, stands: Standing, oom: ObservedOom | None = None
) -> Logged:
    """What the log said, for the report, and how far the rehearsal of its configuration is."""
    log = found.log
    graphs = log.cudagraph_estimate_bytes
    return Logged(
        vllm=log.vllm_version or "",
        model=log.model or "",
        memory=Memory(
            total_bytes=total_bytes(log),
            requested_bytes=log.requested_bytes,
            weights_bytes=log.weights_bytes,
            activation_peak_bytes=log.activation_peak_bytes,
            non_torch_bytes=log.non_torch_bytes,
            cudagraph_bytes=log.cudagraph_bytes if graphs is None else graphs,
            kv_cache_bytes=log.kv_cache_bytes,
            kv_cache_tokens=log.kv_cache_tokens,
            max_concurrency=log.max_concurrency,
            label="measured",
        ),
        failures=[failure_words(trouble) for trouble in log.troubles],
        oom=oom,
        notes=list(_notes(found, base, stands)),
        release=ReleaseOfLog(
            versions=list(log.release.versions),
            known_by=log.release.known_by,
            evidence=list(log.release.evidence),
            contradicts=log.release.contradicts,
            words=release_words(log.release),
        ),
        sums=[ClosedSum.showing(one) for one in log.closures],
        parts=[PartApart.showing(part) for part in stands.parts],
        planned_from=stands.planned_from,
        reason=stands.reason,
    )


def _notes(found: ServerLog, base: Rehearsed, stands: Standing) -> Iterator[str]:
    log = found.log
    if not log.release.may_be(base.vllm):
        yield (
            f"the log is {release_words(log.release)}; the installed vLLM {base.vllm} is what was "
            "rehearsed: where they part it may be the releases that do"
        )
    yield from dict.fromkeys(closure_words(one) for one in log.closures if not one.closes)
    if any(part.name == "encoder budget" and part.apart for part in stands.parts):
        yield (
            "log and rehearsal have another encoder budget: other settings or another way to count "
            "them; what fixes of media bring is the rehearsal's"
        )
    if log.skips_mm_profiling:
        yield "the log's server reserves nothing for the encoder: skip_mm_profiling"
    if found.effective:
        said = ", ".join(f"{name}={found.engine_args[name]}" for name in found.effective)
        yield f"as the log's engine had it by default: {said}"
    if found.left_out:
        yield f"not taken over from the log: {', '.join(found.left_out)}"
    for knob in log.retired:
        instead = f": {knob.today} today" if knob.today else ", with nothing in its place"
        yield f"{knob.name} is gone since vLLM {knob.absent_in}{instead}"
