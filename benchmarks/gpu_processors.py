"""Each file of a corpus through the processors of a few models, on the GPU and on the CPU.

    python benchmarks/gpu_processors.py --data sample [--limit-s 120] [--only gemma]

Prints a Markdown table. Files are those below image/, video/ and audio/ of the folder, one at a
time under the model's defaults; seconds are without loading. Exits 1 where a file comes out with
other tokens, embeds, types or shapes on the GPU. `--device cpu` shows that the program runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gpu import surroundings  # noqa: E402

from mmcalib.checks.engine import DevicePairs  # noqa: E402
from mmcalib.domain.knobs import DEFAULT  # noqa: E402
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape  # noqa: E402
from mmcalib.models.catalogue import find_model  # noqa: E402
from mmcalib.models.checkpoint import materialise  # noqa: E402
from mmcalib.progress import Silent  # noqa: E402
from mmcalib.proof.prove import compare_apart  # noqa: E402

# Each with what it takes; another of one family costs the same. InternVL2's takes no device.
MODELS = {
    "Qwen/Qwen2.5-VL-3B-Instruct": ("image", "video"),
    "google/gemma-3-4b-it": ("image",),
    "Qwen/Qwen2-Audio-7B-Instruct": ("audio",),
    "Qwen/Qwen3-VL-2B-Instruct": ("image", "video"),
    "openai/whisper-large-v3": ("audio",),
}
# `compare_apart` reads no more of a shape than its modality.
SHAPES: tuple[Shape, ...] = (ImageShape(1, 1), VideoShape(1, 1, 1, 1, 1), AudioShape(1, 1))
MIB = 1 << 20


def corpus(data: Path) -> list[tuple[Shape, str]]:
    """The files of the corpus, those of one modality together."""
    return [
        (shape, str(path))
        for shape in SHAPES
        for path in sorted((data / shape.modality).rglob("*"))
        if path.is_file()
    ]


def rows(model: str, found: DevicePairs) -> Iterator[str]:
    """A row of the table for each modality of which both sides took an item."""
    for modality, pairs in found.pairs.items():
        cpu_s, device_s = (sum(one.seconds for one in side) for side in zip(*pairs, strict=True))
        peaks = [made.peak_bytes for _, made in pairs if made.peak_bytes is not None]
        cells = (
            *(model, modality, str(len(pairs)), str(len(found.wrong))),
            *(f"{len(pairs) / cpu_s:.1f}", f"{len(pairs) / device_s:.1f}"),
            f"{cpu_s / device_s:.1f}×",
            f"{sum(peaks) / len(peaks) / MIB:.1f}" if peaks else "–",
            f"{max(peaks) / MIB:.1f}" if peaks else "–",
        )
        yield f"| {' | '.join(cells)} |"


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with image/, video/, audio/")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--limit-s", type=float, default=470.0, help="begin no model later (470)")
    add("--only", action="append", default=[], metavar="MODEL", help="ids that hold this; repeat")
    given = parser.parse_args()
    surroundings.prepare("auto")
    deadline, failed = time.monotonic() + given.limit_s, False
    print(f"vLLM {surroundings.vllm_version()}, {given.device} beside the CPU\n")
    print("| model | modality | items | differ | items/s, CPU | items/s | faster "
          "| MiB per item | at most |\n|---|---|--:|--:|--:|--:|--:|--:|--:|")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="mmcalib-benchmark-") as scratch:
        for number, (model, takes) in enumerate(MODELS.items()):
            if given.only and not any(word in model for word in given.only):
                continue
            if time.monotonic() > deadline:
                break
            geometry = find_model(model)
            assert geometry is not None, model
            folder = materialise(geometry, Path(scratch) / str(number))
            sample = [one for one in corpus(given.data.resolve()) if one[0].modality in takes]
            found = compare_apart(str(folder), None, given.device, DEFAULT, sample, Silent())
            print("\n".join(rows(model, found)), flush=True)
            for path, why in found.wrong.items():
                print(f"{model}, {Path(path).name}: {why}", file=sys.stderr)
            if found.ended:
                print(f"{model}: {found.ended}", file=sys.stderr)
            failed = failed or bool(found.wrong or found.ended)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
