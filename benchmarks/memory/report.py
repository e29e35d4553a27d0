"""The report in Markdown: raw scores in, one page out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from memory.allowances import OUTSIDE, Allowances
from memory.cases import COMPONENTS, GIB, Case, Excluded
from memory.measured import Start
from memory.scores import Row, Score, mean_absolute, per_token_is_exact, with_pool
from mmcalib.models import gpus

MIB = 2**20
# What the page has to show: rows, mean error in percent of the card, GiB promised too much.
OWN_ROWS, SHARE, PROMISED = 30, 0.3, 0.3
# Rows that are promised too much and nobody knows why; the page has a section on them.
_NOT_KNOWN = "q36-35b-nvfp4-5090-wsl"
_GROUPS = {
    "same": "published logs",
    "control": "text-only controls",
    "cold": "text-only controls, compiled cold",
    "drift": "drift",
}
_INTRO = """# How near the rehearsal comes

mmcalib rehearses vLLM startups. This page compares them with published startup logs whose model
geometry and engine arguments are known. It also compares {starts} starts that we measured on an
H100 (`reports/gpu`). `benchmarks/memory_accuracy.py` writes the page.
`benchmarks/memory_cases.toml` holds what each log leaves out, and what we assume.
Most geometries are bundled. Two text-only models, which check everything but the encoder, and one
drafting model are in `benchmarks/memory/controls`.

Rules:

- **Published logs** are rehearsed with the release that wrote the log, or with one whose code for
  this model and start we read and found the same; the case names it. **Drift** is rehearsed with
  the nearest release that runs. **Text-only controls** are rehearsed with the log's release. No
  log of 0.32 or 0.33 is among the cases.
- Nothing is fitted per case. Two allowances are not computed: memory outside torch, and CUDA
  graphs. Both are fitted on the figures at the end of the page. Every case is predicted without
  its own figures.
- The allowances of newer cards were fitted on the **measured** starts. Their row predicts them with
  all figures; the row below it predicts each model without the figures measured on that model.
- A GPU's total memory is printed in the log, or it is torch's total in mmcalib's catalogue. Where
  the total is unknown, the KV pool is not compared.
- Errors are predicted − published. A positive error of the KV pool promises memory that the real
  start did not have.
- *weights only* predicts utilization × total − weights. *constant* subtracts another 2.5 GiB. Both
  use the rehearsed weights and total.

These logs are not all independent evidence. We found four mechanisms by looking at the errors of
cases below, and then read them in the code: encoders run without fused kernels where the language
model is compiled (q25vl7b-video-neg, 2.2 GiB); what a compiled piece holds (llava16-80g, 0.25 GiB;
two other variants were off by -0.25 and +0.12); NCCL is not counted since 0.11 (q3vl30b-4x3090,
0.26 GiB); torch hands out no whole block where its segments expand (q38-27b-nvfp4-a6000, 0.21 GiB
of weights). A fifth, FlashInfer's workspace in the estimate of CUDA graphs, was read in the code
after two starts of Qwen3.6-35B-A3B had been promised 0.49 and 0.46 GiB too much. The cases of
`benchmarks/memory_logs.jsonl` came last. One showed a mistake: 0.20 already subtracts its estimate
of CUDA graphs, mmcalib did so from 0.21 on (q36-35b-nvfp4-5090-wsl-4k, 0.4 GiB). A last mechanism
was found after Qwen3.5-0.8B had been promised 2.0 and 2.2 GiB too much: kernels' stacks (below).
"""
_COLD = """
## Cold starts of text-only models

Three text-only starts are promised 0.66, 0.43 and 0.39 GiB too much. All compiled while vLLM
measured their memory. One server was started again five minutes later, with the compiled code in
its cache (q25-05b-control-0271-warm): it has the pool that the rehearsal predicts. The rehearsal
models a warm start.

vLLM compiles inside its memory profile, and it tells Inductor to benchmark combined kernels
(`benchmark_combo_kernel` in `vllm/config/compilation.py`). The benchmark allocates every argument
of a kernel anew (`benchmark_codegened_module` in torch's `_inductor/codegen/triton.py`). In a
text-only model the first compiled piece reads the embedding table, so the peak holds a second
table. We read this in the code and did not run it on a GPU; the public figures agree:
"""
# Start, what was found, GiB of it, GiB of the model's embedding table.
_COLD_STARTS = (
    ("Qwen2.5-0.5B, RTX 4090, 0.27.1", "activation peak, 0.08 warm", 0.25, 0.25),
    ("Qwen2.5-7B-AWQ, L4, 0.28.0 (public file 69199302682)", "activation peak", 1.04, 1.02),
    ("Llama-3.1-8B, A100, 0.31.0", "activation peak and graph estimate", 1.44, 0.98),
    (
        "Qwen3.6-27B-NVFP4 without encoder, RTX 5090, 0.20.0",
        "error of the pool, above that of an eager start",
        0.51,
        2.37,
    ),
    (
        "Qwen3-8B-AWQ, RTX 4090, 0.27.1 (public file 61585879089)",
        "memory other than weights and pool, more than Qwen3-8B needs",
        1.00,
        1.16,
    ),
    (
        "Qwen3-32B-AWQ, two RTX 4090, 0.28.0 (vllm#54383)",
        "pool lost by the first start, each card",
        0.47,
        0.72,
    ),
)
_NOT_EXPLAINED = """
The pool loses more or less than one table. A warm start needs part of that peak anyway, and a small
allocation can keep the freed block from being returned (0.24 GiB in the first row). Multimodal
models pass embeddings into the compiled graph and do not pay for the table: q38-27b-pro6000 printed
the same pool cold and warm, and gemma4-e4b-qat-l4-062-32k compiled for 68 s and is off by 0.01 GiB.
One report differs: a fork lost 2.5 GiB on the first start of Qwen3.8-27B-NVFP4 (1Cat-vLLM#518),
whose table is 2.37 GiB. Whether that start had its encoder is not said.

## Kernels' stacks

CUDA keeps local memory for the largest stack of any kernel that a process launched, for each thread
that the GPU can hold, until the process ends (NVIDIA on forums.developer.nvidia.com, 289339 and
39558). A new context has 1,024 bytes for each. Triton's autotuner launches every configuration of a
kernel, also those whose registers spill.

vLLM tunes FLA's kernels for gated delta inside its memory profile. On a GPU with 100 KiB of shared
memory for a block, it tries `chunk_fwd_kernel_o` with a tile of 128 × 128 in two warps. We compiled
that for sm_80 with 0.28's Triton (3.7.1), and read the stack from the machine code. *grown* is for
the 108 × 2,048 threads of an A100. *missing* is what vLLM counted as consumed and the rehearsal
without stacks did not:

| model | value heads for each key head | stack, bytes | grown, GiB | missing, GiB |
|---|---|---|---|---|
| Qwen3.5-0.8B | 1 | 11,944 | 2.25 | 2.30 and 2.33 |
| Qwen3.5-4B and 9B | 2 | 11,912 | 2.24 | no log |
| Qwen3.8-27B | 3 | 816 | 0 | 0.15 |

Triton 3.6.0 gives the first kernel 752 bytes. With 0.32 and Triton 3.9.0, the first has 12,200 and
the last 11,904. GPUs of 99 KiB (RTX, L4, L40S) try tiles of 64 × 64 at most, whose stacks fit a new
context. The rehearsal compiles the largest tile of each tuned kernel with the installed Triton. It
does not count the driver's rounding, and the stacks of kernels that are not tuned. We did not
measure this on a GPU.

## Not explained

Six starts of Qwen3.6-35B-A3B in NVFP4 on an RTX 5090 (q36-35b-nvfp4-5090-wsl) are promised 1.15 to
1.62 GiB too much. All are of one evening and one machine: 0.20.0 and WSL 2. Each lacks about 1.15
GiB, the eager one too. In compiled ones, batches of 8,192 and 16,384 tokens add 0.13 and 0.47 GiB.
The machine and FlashInfer's FP4 matrix product are not the cause: two eager starts of Qwen3.6-27B
without its encoder, of that evening, are off by -0.12 GiB (q36-27b-text-5090-wsl). Gemma 4 in NVFP4
is off by 0.06 and -0.17 GiB there. Nor is local memory: the kernels of vLLM, FlashAttention 2 and
the gated delta rule keep at most 632 bytes a thread in it, 0.15 GiB on that card. With 0.24.0 on
another RTX 5090 and 16-bit activations, the model is off by 0.00 and -0.03 GiB. What its image
encoder takes on that machine is not known. vllm#53787 named the same amount on two RTX 5070 Ti;
its author ran both builds alike on 28 August and withdrew the memory, not the slower prefill. The
prefill's kernels are not a difference: up to vllm#55715, of September, all of compute capability
12.x run the Triton ones.
"""


def render(
    scores: Sequence[Score],
    failed: Sequence[tuple[Case, str]],
    excluded: Sequence[Excluded],
    allowances: Allowances,
    starts: Sequence[Start],
) -> str:
    """Return the whole page."""
    parts = [_INTRO.format(starts=len(starts)), "## Summary\n"]
    parts += [
        *_summary(scores, starts, allowances),
        *_figures(scores),
        *_shared_cards(scores),
        *_cold(),
    ]
    parts += _every_log(scores, failed, excluded, allowances)
    parts += _measured(starts)
    for group, title in _GROUPS.items():
        parts.append(f"\n## {title[0].upper()}{title[1:]}\n")
        for one in scores:
            if one.case.group == group:
                parts += _case(one)
    parts += _allowances(allowances)
    return "\n".join(parts) + "\n"


def _every_log(
    scores: Sequence[Score],
    failed: Sequence[tuple[Case, str]],
    excluded: Sequence[Excluded],
    allowances: Allowances,
) -> Iterator[str]:
    yield "\n## Every log\n"
    logs = len(scores) + len(failed) + len(excluded)
    own = sum(map(_with_own_release, scores))
    yield f"{len(scores)} of {logs} were rehearsed, {own} with the release that wrote the log.\n"
    yield "*fitted on*: its error showed a mistake that was then repaired. *left out*: it is"
    yield "predicted without its figures, which are among the allowances. *never seen*: nothing was"
    yield "fitted on it.\n"
    yield "| log | model | of vLLM | rehearsed with | KV pool, error in GiB | known |"
    yield "|---|---|---|---|---|---|"
    for one in scores:
        pool = one.row("kv pool")
        error = "not compared" if pool is None else f"{pool.error / GIB:+.2f}"
        case = one.case
        yield (
            f"| {case.id} | {_cell(case.model)} | {case.logged_release} "
            f"| {one.answer.vllm} | {error} | {allowances.knowledge_of(case)} |"
        )
    yield "\nNot rehearsed:\n\n| log | model | of vLLM | why not |\n|---|---|---|---|"
    for case, why in failed:
        yield f"| {case.id} | {_cell(case.model)} | {case.logged_release} | {_cell(why)} |"
    for left in excluded:
        yield f"| {left.id} | {_cell(left.model)} | {left.release} | {_cell(left.why)} |"


def _with_own_release(one: Score) -> bool:
    # A log that says no release may be known by its line numbers, in brackets behind it.
    return one.case.logged_release.split(" ")[0] == one.answer.vllm


@dataclass(frozen=True, slots=True)
class _Pool:
    """The error of one KV pool, of two predictions that need no vLLM, and the card; bytes."""

    error: float
    baseline_errors: tuple[float, float]
    total_bytes: int
    unified: bool = False


def _pools(scores: Sequence[Score], group: str) -> list[_Pool]:
    return [
        _Pool(
            *(_error(one, "kv pool"), one.baseline_errors, one.answer.total_bytes),
            unified=gpus.find_gpu(one.case.gpu).unified,
        )
        for one in with_pool(scores, group)
    ]


def _summary(
    scores: Sequence[Score], starts: Sequence[Start], allowances: Allowances
) -> Iterator[str]:
    measured = [_Pool(one.error, one.baseline_errors, one.total_bytes) for one in starts]
    held_out = [_Pool(one.held_out_error, one.baseline_errors, one.total_bytes) for one in starts]
    published = [one for one in scores if one.case.group == "same" and _with_own_release(one)]
    own = _pools(published, "same")
    yield "KV pool, mean absolute error:\n"
    yield "| group | cases | GiB | of the card | most promised | weights only | constant |"
    yield "|---|---|---|---|---|---|---|"
    for group, title in _GROUPS.items():
        yield _pool_row(title, _pools(scores, group))
    for known in ("fitted on", "left out", "never seen"):
        those = [one for one in scores if allowances.knowledge_of(one.case) == known]
        yield _pool_row(f"published logs, {known}", _pools(those, "same"))
    yield _pool_row("measured by us, fitted on", measured)
    yield _pool_row("measured by us, the model left out", held_out)
    yield _pool_row("**logs of the rehearsed release, and measured**", own + measured)
    yield _pool_row("**the same, measured models left out**", own + held_out)
    rest = [one for one in published if not one.case.id.startswith(_NOT_KNOWN)]
    yield f"\nAim: {OWN_ROWS} rows of the log's own release, a mean error of at most {SHARE} % of"
    yield f"the card, no card with its own memory promised more than {PROMISED} GiB too much."
    yield f"Now: {len(published) + len(starts)} rows, {_mean_and_worst(own + measured)}"
    yield f"Without the {len(published) - len(rest)} rows that are not explained (below):"
    yield _mean_and_worst(_pools(rest, "same") + measured)


def _mean_and_worst(pools: Sequence[_Pool]) -> str:
    worst = max(one.error for one in pools if not one.unified) / GIB
    share = 100 * mean_absolute(one.error / one.total_bytes for one in pools)
    return f"{len(pools)} with a KV pool, mean error {share:.2f} %, most promised {worst:.2f} GiB."


def _shared_cards(scores: Sequence[Score]) -> Iterator[str]:
    yield "\n## Starts next to other processes\n"
    yield "What vLLM found free is the log's. *outside* is what then stays free next to all that it"
    yield "reserves, *needed* is what the start takes after the KV pool without reserving it.\n"
    yield "| log | free | requested | outside | needed | predicted | published |"
    yield "|---|---|---|---|---|---|---|"
    for one in scores:
        if one.case.free_gib is not None:
            answer = one.answer
            figures = (answer.requested_bytes, answer.outside_bytes, answer.needed_outside_bytes)
            cells = " | ".join(f"{figure / GIB:.2f}" for figure in figures)
            ends = "starts" if answer.starts else _cell(answer.start_problem)
            yield f"| {one.case.id} | {one.case.free_gib} | {cells} | {ends} | {one.case.status} |"


def _cold() -> Iterator[str]:
    yield _COLD
    yield "| cold start | figure | GiB | one embedding table, GiB |\n|---|---|---|---|"
    for start, figure, gib, table in _COLD_STARTS:
        yield f"| {start} | {figure} | {gib:.2f} | {table:.2f} |"
    yield _NOT_EXPLAINED


def _pool_row(title: str, pools: Sequence[_Pool]) -> str:
    if not pools:
        return f"| {title} | 0 | – | – | – | – | – |"
    gib = mean_absolute(one.error for one in pools) / GIB
    share = 100 * mean_absolute(one.error / one.total_bytes for one in pools)
    naive = [mean_absolute(one.baseline_errors[index] for one in pools) / GIB for index in (0, 1)]
    promised = max(0.0, *(one.error for one in pools)) / GIB
    return (
        f"| {title} | {len(pools)} | {gib:.2f} | {share:.2f} % | {promised:.2f} "
        f"| {naive[0]:.2f} | {naive[1]:.2f} |"
    )


def _measured(starts: Sequence[Start]) -> Iterator[str]:
    yield "\n## Measured by us\n"
    yield "The last start of each case in `reports/gpu/results.jsonl` that ran. *left out* is the"
    yield "error without the figures of memory outside torch and of CUDA graphs from this model.\n"
    yield "| start | vLLM | predicted, GiB | measured, GiB | error, GiB | of the card | left out |"
    yield "|---|---|---|---|---|---|---|"
    for one in starts:
        yield (
            f"| {one.key} | {one.vllm} | {one.predicted_bytes / GIB:.2f} "
            f"| {one.measured_bytes / GIB:.2f} | {one.error / GIB:+.2f} "
            f"| {100 * one.error / one.total_bytes:+.2f} % | {one.held_out_error / GIB:+.2f} |"
        )


def _figures(scores: Sequence[Score]) -> Iterator[str]:
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
