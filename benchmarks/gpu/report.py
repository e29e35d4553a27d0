"""The results in Markdown: predicted beside measured, part by part, and what the bursts did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu.results import Result
from gpu.scores import disagreed, scores

GIB = 2**30
CPU_MARK = "**CPU: shows that the program runs, compares nothing.**"


def render(results: Sequence[Result], gpu: str, vllm: str, command: str) -> str:
    """The whole page, of the results of one GPU and one vLLM."""
    lines = [f"# Predicted and measured: {gpu}, vLLM {vllm}", "", f"`{command}`", ""]
    if all(one.device == "cpu" for one in results):
        lines += [CPU_MARK, ""]
    else:
        lines += ["## Aims", "", *(f"- {score}" for score in scores(results))]
        lines += [f"- {said}" for said in disagreed(results)] + [""]
    lines += ["## Parts", "", *_parts(results), "", "## Bursts", "", *_bursts(results)]
    lines += ["", "## Starts", "", *_starts(results)]
    return "\n".join(lines).rstrip() + "\n"


def _parts(results: Sequence[Result]) -> Iterator[str]:
    yield "GiB, but for bytes and tokens; off = predicted ÷ measured − 1."
    yield ""
    yield "| case | part | predicted | measured | off |"
    yield "|---|---|--:|--:|--:|"
    for one in results:
        for part in one.parts:
            cells = (_amount(part.name, value) for value in (part.predicted, part.measured))
            off = "–" if part.off is None else f"{part.off:+.2%}"
            yield f"| {one.key} | {part.name} | {' | '.join(cells)} | {off} |"


def _amount(name: str, value: int) -> str:
    if name in ("KV bytes per token", "KV pool, tokens"):
        return f"{value:,}"
    return f"{value / GIB:.3f}"


def _bursts(results: Sequence[Result]) -> Iterator[str]:
    yield "The same largest images at once, each a request of its own."
    yield ""
    yield "| case | items | tokens each | largest step | peak, GiB | reserved, GiB | outcome |"
    yield "|---|--:|--:|--:|--:|--:|---|"
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
                f"| {_gib(reserved)} | {outcome} |"
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


def _gib(value: int | None) -> str:
    return "–" if value is None else f"{value / GIB:.2f}"


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
