"""The report in Markdown: raw scores in, one page out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from memory.allowances import Allowances, Figure
from memory.cases import GIB, Case, Excluded
from memory.scores import Row, Score, mean_absolute, per_token_is_exact, with_pool

_INTRO = """# How near the rehearsal comes

Every published vLLM startup log of `{logs}` that has a bundled geometry and says enough of its
engine arguments, rehearsed and compared. `benchmarks/memory_accuracy.py` writes this page;
`benchmarks/memory_cases.toml` holds what each log does not say by itself, and what is assumed.

Rules:

- A case **shares the code path** if it was rehearsed with the release that wrote the log, or with
  one whose code for this model and start was read and found the same; the case says which. All
  others are **drift**: rehearsed with the nearest release at hand.
- Nothing is fitted per case. Two global allowances are not computed: memory outside torch, and CUDA
  graphs. Both are fitted on the public figures listed at the end, and every case is predicted
  without its own.
- A GPU's total is printed in the log, or torch's total of that GPU in mmcalib's catalogue. Where it
  is unknown the KV pool is not scored.
- Errors are predicted − published: a positive error of the KV pool is a promise that the real start
  would not keep.
- *weights only* takes utilization × total − weights for the KV pool; *constant* takes another
  2.5 GiB off. Both are given the rehearsal's weights and total.

Not independent evidence: three mechanisms were found by looking at the errors of cases below, and
then read in the code. That encoders run without fused kernels where the language model is compiled
(q25vl7b-video-neg: 2.2 GiB), what a compiled piece holds (llava16-80g: 0.25 GiB, the third variant
tried; the other two were off by -0.25 and +0.12), and that NCCL is not counted since 0.11
(q3vl30b-4x3090: 0.26 GiB). The two A100 cases were rehearsed after the first two of these and
changed nothing. No log of the newest release, 0.32, is among the cases.
"""


def render(
    scores: Sequence[Score],
    failed: Sequence[tuple[Case, str]],
    excluded: Sequence[Excluded],
    allowances: Allowances,
    logs: str,
) -> str:
    """The whole page."""
    parts = [_INTRO.format(logs=logs), "## Summary\n", *_summary(scores)]
    for group, title in (("same", "Shares the code path"), ("drift", "Drift")):
        parts.append(f"\n## {title}\n")
        for one in scores:
            if one.case.group == group:
                parts += _case(one)
    parts.append("\n## Could not run\n\n| log | model | reason |\n|---|---|---|")
    parts += [f"| {case.id} | {case.model} | {_cell(why)} |" for case, why in failed]
    parts += [f"| {one.id} | {one.model} | {_cell(one.why)} |" for one in excluded]
    parts += _allowances(allowances)
    return "\n".join(parts) + "\n"


def _summary(scores: Sequence[Score]) -> Iterator[str]:
    yield "KV pool, mean absolute error in GiB:\n"
    yield "| group | cases | rehearsal | of the GPU | over-promised by | weights only | constant |"
    yield "|---|---|---|---|---|---|---|"
    for group, title in (("same", "shares the code path"), ("drift", "drift")):
        found = with_pool(scores, group)
        if not found:
            yield f"| {title} | 0 | – | – | – | – | – |"
            continue
        errors = [_error(one, "kv pool") for one in found]
        shares = [error / one.answer.total_bytes for error, one in zip(errors, found, strict=True)]
        naive = [
            mean_absolute(one.baseline_errors[index] for one in found) / GIB for index in (0, 1)
        ]
        yield (
            f"| {title} | {len(found)} | {mean_absolute(errors) / GIB:.2f} "
            f"| {100 * mean_absolute(shares):.2f} % | {max(0.0, *errors) / GIB:.2f} "
            f"| {naive[0]:.2f} | {naive[1]:.2f} |"
        )
    yield "\nOther figures:\n"
    yield "| figure | cases | mean absolute error | exact |"
    yield "|---|---|---|---|"
    for figure in ("weights", "activation peak", "cuda graphs", "non-torch"):
        rows = [row for one in scores if (row := one.row(figure))]
        if rows:
            share = 100 * mean_absolute(row.error / row.published for row in rows)
            error = mean_absolute(row.error for row in rows) / GIB
            yield f"| {figure} | {len(rows)} | {error:.4f} GiB, {share:.2f} % | – |"
    pairs = [(row, one.case) for one in scores if (row := one.row("kv bytes per token"))]
    exact = sum(per_token_is_exact(row, case) for row, case in pairs)
    yield f"| KV bytes per token | {len(pairs)} | – | {exact} of {len(pairs)} |"
    budgets = [one for one in scores if "budget" in one.case.scored and one.case.published.budget]
    right = sum(one.budget == one.case.published.budget for one in budgets)
    yield f"| encoder budget line | {len(budgets)} | – | {right} of {len(budgets)} |"


def _error(one: Score, figure: str) -> float:
    row = one.row(figure)
    assert row is not None
    return row.error


def _case(one: Score) -> Iterator[str]:
    case, answer = one.case, one.answer
    yield f"### {case.id}: {case.model}\n"
    yield f"Log of {case.logged_release}, rehearsed with {answer.vllm} ({case.why})."
    yield f"GPU {case.gpu}, total {answer.total_bytes / GIB:.2f} GiB: {case.total}."
    for assumed in case.assumed:
        yield f"Assumed: {assumed}."
    yield "\n| figure | predicted | published | error | of the GPU |\n|---|---|---|---|---|"
    for row in one.rows:
        yield _row(row, one)
    published = case.published.budget
    if published is not None and "budget" in case.scored:
        yield f"| encoder budget | {_line(one.budget)} | {_line(published)} | {_verdict(one)} | |"
    if one.row("kv pool"):
        for name, pool, error in zip(
            ("weights only", "constant"), one.baselines, one.baseline_errors, strict=True
        ):
            yield f"| *KV pool, {name}* | {pool / GIB:.2f} | | {error / GIB:+.2f} | |"
    phases = ", ".join(f"{phase.name} {phase.peak_bytes / GIB:.2f}" for phase in answer.phases)
    yield f"\nPeaks above the loaded model, GiB: {phases}. Sampler {answer.sampler}, attention "
    yield f"{answer.attention}, encoder's {answer.encoder_attention}, runner {answer.runner}.\n"


def _row(row: Row, one: Score) -> str:
    if row.figure == "kv bytes per token":
        exact = "exact" if per_token_is_exact(row, one.case) else f"{row.error:+,.0f}"
        return f"| {row.figure} | {row.predicted:,.0f} | {row.published:,.0f} | {exact} | |"
    if row.figure == "concurrency":
        return f"| {row.figure} | {row.predicted:.2f} | {row.published:.2f} | {row.error:+.2f} | |"
    share = 100 * row.error / one.answer.total_bytes
    return (
        f"| {row.figure} | {row.predicted / GIB:.4f} | {row.published / GIB:.4f} "
        f"| {row.error / GIB:+.4f} | {share:+.2f} % |"
    )


def _line(budget: tuple[int, int, str] | None) -> str:
    return "none" if budget is None else f"{budget[0]:,} tokens, {budget[1]} {budget[2]}"


def _verdict(one: Score) -> str:
    return "exact" if one.budget == one.case.published.budget else "**differs**"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:300]


def _allowances(allowances: Allowances) -> Iterator[str]:
    first, each = allowances.line()
    yield "\n## The allowances\n"
    yield f"Memory outside torch: {allowances.non_torch_bytes() / GIB:.3f} GiB, the median of"
    yield from _figures(allowances.non_torch)
    yield (
        f"\nCUDA graphs: {first / 2**20:.0f} MiB and {each / 2**20:.1f} MiB for each graph, "
        "a least-squares line through"
    )
    yield from _figures(allowances.cuda_graphs)


def _figures(figures: Sequence[Figure]) -> Iterator[str]:
    yield "\n| GiB | graphs | from | source |\n|---|---|---|---|"
    for one in figures:
        yield f"| {one.nbytes / GIB:.2f} | {one.graphs or ''} | {one.what} | {one.source} |"


def worst(scores: Sequence[Score]) -> Mapping[str, float]:
    """Each group's largest error of the KV pool in GiB, for the terminal."""
    return {
        group: max(
            (abs(_error(one, "kv pool")) / GIB for one in with_pool(scores, group)), default=0.0
        )
        for group in ("same", "drift")
    }
