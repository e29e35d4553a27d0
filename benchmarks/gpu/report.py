"""The results in Markdown: predicted beside measured, part by part, and what the bursts did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpu.results import Result
from gpu.scores import disagreed, scores
from mmcalib.memory.checks import Component
from mmcalib.text import GIB

CPU_MARK = "**CPU: shows that the program runs, compares nothing.**"


NAMED = ("weights", "encoder peak", "language model peak", "sampler peak", "CUDA graphs")


def render(results: Sequence[Result], gpu: str, vllm: str, first_pools: Mapping[str, int]) -> str:
    """The results of one GPU and one vLLM; `first_pools` were predicted before the measurement."""
    lines = [f"# Predicted and measured: {gpu}, vLLM {vllm}", ""]
    if all(one.device == "cpu" for one in results):
        lines += [CPU_MARK, ""]
    else:
        lines += [*(f"- {score}" for score in scores(results))]
        lines += [f"- {said}" for said in disagreed(results)] + [""]
    lines += ["## How much KV cache is left?", "", *_pools(results, first_pools)]
    lines += ["", "## What takes the rest?", "", *_parts(results)]
    lines += ["", "## Does load stay within what was profiled?", "", *_bursts(results)]
    lines += ["", "## How did each start go?", "", *_starts(results)]
    return "\n".join(lines).rstrip() + "\n"


def _pools(results: Sequence[Result], first: Mapping[str, int]) -> Iterator[str]:
    yield "GiB. *First* was predicted before the measurement, *now* is predicted by this version,"
    yield "whose allowances these starts are part of; off = now − measured."
    yield ""
    yield "| case | first | now | measured | off | of the card | tokens, now | measured |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for one in results:
        found = one.parts
        if pool := found.get("KV pool"):
            off = pool.predicted - pool.measured
            tokens = found["KV pool, tokens"]
            yield (
                f"| {one.key} | {first[one.key] / GIB:.2f} | {pool.predicted / GIB:.2f} "
                f"| {pool.measured / GIB:.2f} | {off / GIB:+.2f} | {off / one.card_bytes:+.2%} "
                f"| {tokens.predicted:,} | {tokens.measured:,} |"
            )


def _parts(results: Sequence[Result]) -> Iterator[str]:
    yield "GiB, predicted / measured. Phases are peaks above the loaded model."
    yield ""
    yield f"| case | {' | '.join(NAMED)} | outside torch |"
    yield f"|---|{'--:|' * (len(NAMED) + 1)}"
    for one in results:
        if found := one.parts:
            cells = [_pair(found.get(name)) for name in NAMED]
            beside = _pair(found.get("beside the weights"))
            yield f"| {one.key} | {' | '.join(cells)} | {beside} |"


def _pair(part: Component | None) -> str:
    if part is None or not (part.predicted or part.measured):
        return "–"
    return f"{part.predicted / GIB:.3f} / {part.measured / GIB:.3f}"


def _bursts(results: Sequence[Result]) -> Iterator[str]:
    yield "The largest item that vLLM admits under a budget of 8,192 tokens, many times at once."
    yield "*Peak* is what serving took above the model and its KV cache, *profiled* what startup"
    yield "had measured for it."
    yield ""
    yield (
        "| case | items | tokens each | largest step | peak, GiB | profiled, GiB | peak ÷ profiled "
        "| outcome |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|---|"
    for one in results:
        if one.burst is not None:
            sent = one.burst
            peak, reserved = (
                sent.get("peak_bytes"),
                (one.started or {}).get("activation_peak_bytes"),
            )
            outcome = "answered" if sent["survived"] else _cell(one.failed["burst"])
            yield (
                f"| {one.key} | {sent['items']} | {_number(sent.get('item_tokens'))} "
                f"| {_number(sent.get('largest_encoder_step_tokens'))} | {_gib(peak)} "
                f"| {_gib(reserved)} | {_ratio(peak, reserved)} | {outcome} |"
            )


def _starts(results: Sequence[Result]) -> Iterator[str]:
    yield "| case | runner | seconds | free before | in use before, after | graphs taken | failed |"
    yield "|---|---|--:|--:|--:|--:|---|"
    for one in results:
        found = (one.started or {}).get("gpu") or {}
        runner = found.get("runner") or (one.rehearsed or {}).get("runner", "–")
        used = f"{_gib(one.used_before_bytes)}, {_gib(one.used_after_bytes)}"
        failed = "; ".join(f"{step}: {why}" for step, why in one.failed.items())
        yield (
            f"| {one.key} | {runner} | {one.seconds:.0f} | {_gib(found.get('free_before_bytes'))} "
            f"| {used} | {_gib(found.get('cudagraph_captured_bytes'))} | {_cell(failed)} |"
        )


def _ratio(peak: int | None, reserved: int | None) -> str:
    return f"{peak / reserved:.2f}" if peak and reserved else "–"


def _gib(value: int | None) -> str:
    return "–" if value is None else f"{value / GIB:.2f}"


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
