"""What calibration is worth on GPUs of 12 and 16 GiB, rehearsed, and whether it reserves enough.

    python benchmarks/small_gpus.py [--data sample/image] [--out FILE]

Needs vLLM and no GPU. `make demo`, or `datasets/materialise.py sample`, fetches the sample. Exits 1
where a target is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import mmcalib  # noqa: E402
from mmcalib.admission.calibration import Calibration  # noqa: E402
from mmcalib.derive.policy import Prefer  # noqa: E402

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"
CONTEXT_TOKENS = 32_768


@dataclass(frozen=True, slots=True)
class Target:
    """Least KV tokens as a multiple of the default's; None where the default must not start."""

    gpu: str
    prefer: Prefer
    least_gain: float | None


TARGETS = (
    Target("RTX-4080", "quality", 1.7),
    Target("RTX-4080", "throughput", 2.0),
    Target("RTX-3060-12G", "quality", None),
    Target("RTX-3060-12G", "throughput", None),
)


def misses(target: Target, found: Calibration) -> Iterator[str]:
    """What of the target was not reached, in words."""
    default, calibrated = found.memory.default, found.memory.calibrated
    if calibrated.kv_cache_tokens is None:
        yield "the calibrated configuration does not start"
        return
    if target.least_gain is None:
        if default.kv_cache_tokens is not None:
            yield "the default starts"
    elif default.kv_cache_tokens is None:
        yield "the default does not start"
    elif calibrated.kv_cache_tokens < target.least_gain * default.kv_cache_tokens:
        yield f"less than {target.least_gain} times the default's KV tokens"
    if target.least_gain is not None and target.prefer == "quality" and downscaled(found):
        yield "items are downscaled"
    if status(found, "memory reserve") != "pass":
        yield "under-reserved"


def downscaled(found: Calibration) -> float:
    """The share of items that the chosen points downscale."""
    return max(
        (point.share_downscaled for point in found.frontier if point.choice == "chosen"),
        default=0.0,
    )


def status(found: Calibration, name: str) -> str:
    return next((check.status for check in found.checks if check.name == name), "missing")


def page(results: list[tuple[Target, Calibration]]) -> Iterator[str]:
    yield "# Calibration on small GPUs, rehearsed"
    yield ""
    first = results[0][1]
    yield (
        f"{MODEL} (bundled geometry), the {first.corpus.items} images of the sample corpus, "
        f"max_model_len {CONTEXT_TOKENS:,}, vLLM {first.tool['vllm']}. Printed by "
        "`python benchmarks/small_gpus.py`; memory is rehearsed, not measured on these GPUs."
    )
    yield ""
    yield (
        "| GPU | prefer | default KV cache, tokens | calibrated KV cache, tokens | gain | "
        "items downscaled | reserved for the worst step |"
    )
    yield "|---|---|--:|--:|--:|--:|---|"
    for target, found in results:
        default, calibrated = found.memory.default, found.memory.calibrated
        before = f"{gib(default.kv_cache_bytes)}, does not start"
        gain = "starts"
        if default.kv_cache_tokens and calibrated.kv_cache_tokens:
            before = f"{gib(default.kv_cache_bytes)}, {default.kv_cache_tokens:,}"
            gain = f"{calibrated.kv_cache_tokens / default.kv_cache_tokens:.2f} ×"
        after = f"{gib(calibrated.kv_cache_bytes)}, {calibrated.kv_cache_tokens or 0:,}"
        reserved = status(found, "memory reserve")
        yield (
            f"| {target.gpu} | {target.prefer} | {before} | {after} | {gain} | "
            f"{downscaled(found):.1%} | {reserved} |"
        )
    yield ""
    yield "The frontier that led there, on the first GPU and on the last:"
    for target, found in (results[0], results[-1]):
        yield ""
        yield f"| {target.gpu}: cap | largest item | items downscaled | peak | KV cache | |"
        yield "|--:|--:|--:|--:|--:|---|"
        for point in found.frontier:
            kept = f"{gib(point.activation_peak_bytes)} | {gib(point.kv_cache_bytes)}"
            chosen = "chosen" if point.choice == "chosen" else ""
            yield (
                f"| {point.value:,} px | {point.max_tokens:,} | {point.share_downscaled:.1%} | "
                f"{kept} | {chosen} |"
            )


def gib(nbytes: int | None) -> str:
    return "" if nbytes is None else f"{nbytes / 2**30:.2f} GiB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT / "sample" / "image")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results, missed = [], []
    for target in TARGETS:
        found = mmcalib.calibrate(
            MODEL,
            options.data,
            policy=mmcalib.Policy(prefer=target.prefer, max_model_len=CONTEXT_TOKENS),
            gpu=target.gpu,
            validate="none",
        )
        results.append((target, found))
        missed += [f"{target.gpu}, {target.prefer}: {words}" for words in misses(target, found)]
    text = "\n".join(page(results)) + "\n"
    print(text, end="")
    if options.out:
        options.out.write_text(text)
    for words in missed:
        print(f"missed: {words}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
