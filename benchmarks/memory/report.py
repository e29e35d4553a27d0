"""The report in Markdown: raw scores in, one page out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from memory.allowances import OUTSIDE, Allowances
from memory.cases import COMPONENTS, GIB, Case, Excluded
from memory.scores import Row, Score, mean_absolute, per_token_is_exact, with_pool

MIB = 2**20
_GROUPS = {"same": "shares the code path", "control": "text-only controls", "drift": "drift"}
_INTRO = """# How near the rehearsal comes

Every published vLLM startup log of `{logs}` whose model's geometry is known and that says enough of
its engine arguments, rehearsed and compared. `benchmarks/memory_accuracy.py` writes this page;
`benchmarks/memory_cases.toml` holds what each log does not say by itself, and what is assumed.
Geometries are those that are bundled; two models that take text alone, as controls of what is not
the encoder, and one that drafts for another have theirs in `benchmarks/memory/controls`.

Rules:

- A case **shares the code path** if it was rehearsed with the release that wrote the log, or with
  one whose code for this model and start was read and found the same; the case says which. All
  others are **drift**: rehearsed with the nearest release at hand. Logs of models that take text
  alone, each rehearsed with its own release, are **controls**: they score all but the encoder.
- Nothing is fitted per case. Two global allowances are not computed: memory outside torch, and CUDA
  graphs. Both are fitted on the figures listed at the end, and every case is predicted
  without its own.
- A GPU's total is printed in the log, or torch's total of that GPU in mmcalib's catalogue. Where it
  is unknown the KV pool is not scored.
- Errors are predicted − published: a positive error of the KV pool is a promise that the real start
  would not keep.
- *weights only* takes utilization × total − weights for the KV pool; *constant* takes another
  2.5 GiB off. Both are given the rehearsal's weights and total.

Not independent evidence: four mechanisms were found by looking at the errors of cases below, and
then read in the code. That encoders run without fused kernels where the language model is compiled
(q25vl7b-video-neg: 2.2 GiB), what a compiled piece holds (llava16-80g: 0.25 GiB, the third variant
tried; the other two were off by -0.25 and +0.12), that NCCL is not counted since 0.11
(q3vl30b-4x3090: 0.26 GiB), and that torch gives no block whole where its segments expand
(q38-27b-nvfp4-a6000: 0.21 GiB of weights); every log whose recipe or file sets that is rehearsed
with it. The two A100 cases were rehearsed after the first two of these and changed nothing. The two
controls are of newer releases than most cases (0.27.1 and 0.31), came late, and changed nothing but
one thing, read in the code and not in their errors: that the second of vLLM's model runners
estimates no CUDA graphs before 0.29. There the pool is promised too high, and why is not known. No
log of 0.32 or 0.33 is among the cases.

That FlashInfer's workspace is in vLLM's estimate of CUDA graphs was read in the code after two
starts of Qwen3.6-35B-A3B had been promised 0.49 and 0.46 GiB more than they had, and vllm#52872
had printed 0.37 GiB more of graphs for 8,192 tokens than for 2,048, as the workspace is larger.
Nothing of it is fitted, but these are no independent evidence of it. Two figures are nearer to
that: a log of the same model on a GB10, which is not compared, prints 0.43 GiB for two graphs, of
which the workspace is 0.38; and q38-27b-fp8-2x5090 prints 0.13, where drafted tokens leave no
full graphs and the workspace is not in the estimate. The cases of 0.27.1 were rehearsed
again with it: none of their figures moved.
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
    parts += _every_log(scores, failed, excluded)
    for group, title in _GROUPS.items():
        parts.append(f"\n## {title[0].upper()}{title[1:]}\n")
        for one in scores:
            if one.case.group == group:
                parts += _case(one)
    parts += _allowances(allowances)
    return "\n".join(parts) + "\n"


def _every_log(
    scores: Sequence[Score], failed: Sequence[tuple[Case, str]], excluded: Sequence[Excluded]
) -> Iterator[str]:
    yield "\n## Every log\n"
    logs = len(scores) + len(failed) + len(excluded)
    # A log that says no release may be known by its line numbers, in brackets behind it.
    own = sum(one.case.logged_release.split(" ")[0] == one.answer.vllm for one in scores)
    yield f"{len(scores)} of {logs} were rehearsed, {own} with the release that wrote the log.\n"
    yield "| log | model | of vLLM | rehearsed with | KV pool, error in GiB |"
    yield "|---|---|---|---|---|"
    for one in scores:
        pool = one.row("kv pool")
        error = "not compared" if pool is None else f"{pool.error / GIB:+.2f}"
        case = one.case
        yield (
            f"| {case.id} | {_cell(case.model)} | {case.logged_release} "
            f"| {one.answer.vllm} | {error} |"
        )
    yield "\nNot rehearsed:\n\n| log | model | of vLLM | why not |\n|---|---|---|---|"
    for case, why in failed:
        yield f"| {case.id} | {_cell(case.model)} | {case.logged_release} | {_cell(why)} |"
    for left in excluded:
        yield f"| {left.id} | {_cell(left.model)} | {left.release} | {_cell(left.why)} |"


def _summary(scores: Sequence[Score]) -> Iterator[str]:
    yield "KV pool, mean absolute error in GiB:\n"
    yield "| group | cases | rehearsal | of the GPU | over-promised by | weights only | constant |"
    yield "|---|---|---|---|---|---|---|"
    for group, title in _GROUPS.items():
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
    for figure in COMPONENTS[:-1]:
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
    if case.environment:
        yield f"Started with {', '.join(f'`{k}={v}`' for k, v in case.environment.items())}."
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
    fitted = allowances.fit()
    older, newer, unified = (allowances.outside_bytes(kind) / GIB for kind in OUTSIDE)
    more = max(one.nbytes for one in allowances.convolution) / GIB
    yield "\n## The allowances\n"
    yield f"- Memory outside torch: {older:.2f} GiB, the median of what starts took. Since 0.20, on"
    yield f"  compute capability 9.0 and more, {newer:.2f} GiB, and {more:.2f} GiB more where the"
    yield f"  encoder convolves. On unified memory {unified:.2f} GiB."
    first, each, layer = fitted.first / MIB, fitted.each / MIB, fitted.each_layer / MIB
    yield f"- CUDA graphs: {first:.0f} MiB for the first, {each:.2f} for each, of gated-delta"
    yield f"  models {layer:.3f} for each layer of each: least squares through both kinds."
    yield "\nEach figure predicted from all others, in GiB:\n"
    yield from leave_one_out(allowances)
    columns = ("GiB", "graphs", "layers", "error", "kind", "from", "source")
    yield f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    for kind, one, error in allowances.errors():
        figures = f"{one.nbytes / GIB:.2f} | {one.graphs or ''} | {one.layers or ''}"
        yield f"| {figures} | {error / GIB:+.2f} | {kind} | {one.what} | {one.source} |"


def leave_one_out(allowances: Allowances) -> Iterator[str]:
    """A table of errors by kind, each figure predicted without itself."""
    by_kind: dict[str, list[float]] = {}
    for kind, _, error in allowances.errors():
        by_kind.setdefault(kind, []).append(error / GIB)
    yield "| kind | figures | mean absolute error | largest |\n|---|---|---|---|"
    for kind, found in by_kind.items():
        largest = max(found, key=abs)
        yield f"| {kind} | {len(found)} | {mean_absolute(found):.2f} | {largest:+.2f} |"


def worst(scores: Sequence[Score]) -> Mapping[str, float]:
    """Each group's largest error of the KV pool in GiB, for the terminal."""
    return {
        group: max(
            (abs(_error(one, "kv pool")) / GIB for one in with_pool(scores, group)), default=0.0
        )
        for group in _GROUPS
    }
