"""The page of the processors: what differs, items per second, memory of the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu.processed import UNSERVED, WHOLE, Line
from gpu.report import CPU_MARK
from mmcalib.workflows.proof.processor_device import figures

MIB = 1 << 20
_NAMED = 20


def render(lines: Sequence[Line], command: str) -> str:
    """One section for each GPU and vLLM that the lines are of."""
    page = [
        "# Processors on a GPU and on the CPU",
        "",
        f"`{command}`",
        "",
        "Every file of the corpus, one at a time, by the installed vLLM's own processor under its "
        "defaults, on the CPU and on the device. Seconds are without loading, on the device until "
        "it is done; the tensors stay there. Memory is the peak above what was held before the "
        "item. *Differ*: other tokens, embeds, types or shapes of tensors. Values are in the "
        "tensors' own unit: pixels of `uint8` where the model normalises them itself.",
    ]
    for of in dict.fromkeys(line.of for line in lines):
        page += ["", *_section([line for line in lines if line.of == of])]
    return "\n".join(page) + "\n"


def wrong(lines: Sequence[Line]) -> list[str]:
    """Every item that came out otherwise on the device, or only the CPU took."""
    found = []
    for line in lines:
        if pair := line.pair:
            said = pair.differences(line.device)
        else:
            said = [f"refused on {line.device} alone: {line.refusal}"] if line.cpu else []
        if said:
            found.append(f"{line.model}, {line.item}: {said[0]}")
    return found


def verdict(lines: Sequence[Line]) -> str:
    """The aim: no item differs."""
    compared = [line for line in lines if line.cpu is not None]
    models = len({line.model for line in compared})
    off = len(wrong(lines))
    return (
        f"items that differ: {off} of {len(compared)} over {models} models: "
        f"{'fail' if off or not compared else 'pass'}"
    )


def _section(lines: Sequence[Line]) -> Iterator[str]:
    gpu, vllm, device = lines[0].of
    yield f"## {gpu}, vLLM {vllm}" if device != "cpu" else f"## CPU, vLLM {vllm}"
    yield ""
    if device == "cpu":
        yield CPU_MARK
        yield ""
    threads = max(line.threads for line in lines)
    option = next((line.option for line in lines if line.option), "")
    served = f"serves a GPU by `{option}`" if option else "has no option that serves a GPU"
    yield f"- {verdict(lines)}"
    yield f"- threads of torch on the CPU: {threads}"
    yield f"- this vLLM {served}, on encode-only instances alone"
    yield from (f"- {said}" for said in wrong(lines)[:_NAMED])
    yield ""
    yield (
        "| model | items | n | differ | refused anywhere | items/s, CPU | items/s, device | faster "
        "| MiB per item, mean | at most | values differ by |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    shown = [line for line in lines if line.refusal != UNSERVED]
    for model, modality in dict.fromkeys((one.model, one.modality) for one in shown):
        of = [one for one in lines if (one.model, one.modality) == (model, modality)]
        if modality == WHOLE and any(one.model == model and one.modality for one in lines):
            # It was opened in the end.
            continue
        yield f"| {model} | {modality or 'all'} | {_cells(of)} |"


def _cells(lines: Sequence[Line]) -> str:
    pairs = [pair for line in lines if (pair := line.pair)]
    refused = sum(1 for line in lines if line.item != WHOLE and line.cpu is None)
    if not pairs:
        why = next((line.refusal for line in lines if line.refusal), "")
        said = " ".join(why.replace("|", "\\|").split())
        return f"0 | – | {refused} | {said} | – | – | – | – | –"
    found = figures(pairs, lines[0].device)
    times = found.device_items_per_s / found.cpu_items_per_s
    off = found.largest_difference
    cells = (
        *(str(found.items), str(found.differing), str(refused)),
        *(f"{found.cpu_items_per_s:.1f}", f"{found.device_items_per_s:.1f}", f"{times:.1f}×"),
        *(_mib(found.device_mean_bytes), _mib(found.device_peak_bytes)),
        "–" if off is None else f"{off:.3g}",
    )
    return " | ".join(cells)


def _mib(value: int | None) -> str:
    return "–" if value is None else f"{value / MIB:.1f}"
