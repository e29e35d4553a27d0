"""Calibrated configurations beside vLLM's defaults: corpora × models × GPUs, rehearsed.

    python benchmarks/better_than_default.py [--corpus NAME] [--model ID] [--gpu NAME]
        [--rows reports/better-than-default.jsonl] [--out reports/better-than-default.md]

Each option may be given several times and narrows what is run. Needs vLLM, no GPU and no weights.
Each row is kept in ROWS when it ends, and what is there is not run again. Exits 1 where `run` finds
its configuration worse than defaults that serve the corpus (MM071).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import av  # noqa: E402
import numpy as np  # noqa: E402
import soundfile  # noqa: E402
from calibrations import calibrated, commit, keep, kept, retentions  # noqa: E402
from empty_media import write_image  # noqa: E402
from pages import page  # noqa: E402

from mmcalib.checks.memory import reserve_left, spends_reserve  # noqa: E402
from mmcalib.results.memory import Memory, TrafficFigures  # noqa: E402

# A clip of 12 seconds takes 16,000 tokens.
CONTEXT_TOKENS, CLIPS_CONTEXT_TOKENS = 8_192, 32_768
GPUS = ("L4", "L40S", "A100-80G", "H100-80G")
SEED = 11


def pictures(folder: Path, chance: random.Random) -> None:
    """What phones, screens and the web make."""
    sides = ((1024, 768), (1280, 960), (1920, 1080), (800, 600), (640, 640), (1536, 2048))
    for number in range(120):
        width, height = chance.choice(sides)
        write_image(folder / f"p{number:03d}", width, height)
    write_image(folder / "largest", 2016, 2016)


def pictures_and_clips(folder: Path, chance: random.Random) -> None:
    pictures(folder, chance)
    for number in range(6):
        seconds = chance.choice((4, 8, 12))
        write_clip(folder / f"v{number}.mp4", seconds, *chance.choice(((1920, 1080), (1280, 720))))


def thumbnails(folder: Path, chance: random.Random) -> None:
    for number in range(120):
        write_image(folder / f"t{number:03d}", *(chance.randrange(96, 320) for _ in range(2)))


def scans(folder: Path, chance: random.Random) -> None:
    """A4 at 200 to 300 dpi."""
    for number in range(40):
        dpi = chance.choice((200, 240, 300))
        write_image(folder / f"s{number:03d}", round(8.27 * dpi), round(11.69 * dpi))


def sounds(folder: Path, chance: random.Random) -> None:
    for number in range(40):
        seconds = chance.choice((0.3, 1.0, 3.0, 8.0, 20.0, 29.0))
        silence = np.zeros(round(seconds * 16_000), dtype=np.int16)
        soundfile.write(folder / f"a{number:03d}.wav", silence, 16_000)


def recordings(folder: Path, chance: random.Random) -> None:
    """Of two to twenty minutes: above the encoder budget of most defaults."""
    for seconds in (120, 300, 590, 1_200):
        silence = np.zeros(seconds * 16_000, dtype=np.int16)
        soundfile.write(folder / f"r{seconds}.wav", silence, 16_000)


def merged_scans(folder: Path, chance: random.Random) -> None:
    """Pages of a PDF in one picture, and strips."""
    for width, height in ((2366, 1402), (867, 6771), (2968, 1596), (1654, 4678)):
        write_image(folder / f"m{width}x{height}", width, height)


def nine_images(folder: Path, chance: random.Random) -> None:
    """Nine screenshots or photos in each request."""
    pictures(folder, chance)
    names = sorted(path.name for path in folder.iterdir())
    with open(folder / "requests.jsonl", "w", encoding="utf-8") as lines:
        for number in range(12):
            parts = [
                {"type": "image_url", "image_url": {"url": name}}
                for name in chance.sample(names, 9)
            ]
            parts.append({"type": "text", "text": f"Compare these, {number}."})
            lines.write(json.dumps({"messages": [{"role": "user", "content": parts}]}) + "\n")


def three_modalities(folder: Path, chance: random.Random) -> None:
    pictures_and_clips(folder, chance)
    sounds(folder, chance)


def write_clip(path: Path, seconds: int, width: int, height: int) -> None:
    """One grey frame a second."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=1)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        grey = np.full((height, width, 3), 128, dtype=np.uint8)
        for _ in range(seconds):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode(None))


CORPORA: dict[str, Callable[[Path, random.Random], None]] = {
    "pictures": pictures,
    "pictures and clips": pictures_and_clips,
    "thumbnails": thumbnails,
    "scans": scans,
    "sounds": sounds,
    "recordings": recordings,
    "merged scans": merged_scans,
    "nine images": nine_images,
    "three modalities": three_modalities,
}
_STILLS = ("pictures", "thumbnails", "scans", "merged scans", "nine images")
MODELS: dict[str, tuple[str, ...]] = {
    "Qwen/Qwen2.5-VL-3B-Instruct": (*_STILLS, "pictures and clips"),
    "Qwen/Qwen2.5-VL-7B-Instruct": (*_STILLS, "pictures and clips"),
    "Qwen/Qwen3-VL-8B-Instruct": (*_STILLS, "pictures and clips"),
    "OpenGVLab/InternVL3-8B": _STILLS,
    "google/gemma-3-4b-it": _STILLS,
    "llava-hf/llava-onevision-qwen2-7b-ov-hf": (*_STILLS, "pictures and clips"),
    "openai/whisper-large-v3": ("sounds", "recordings"),
    "Qwen/Qwen3-ASR-1.7B": ("sounds", "recordings"),
    "Qwen/Qwen2.5-Omni-3B": ("recordings", "three modalities"),
    "Qwen/Qwen2-Audio-7B-Instruct": ("sounds",),
}

Traffic = TrafficFigures | None


@dataclass(frozen=True, slots=True)
class Side:
    """Figures of one configuration; no tokens where it does not start. `requests_rejected` and what
    follows are of its simulated traffic: what is left of the reserve in the highest step, whether
    the GPU has the memory, and what load costs.
    """

    kv_cache_tokens: int | None
    max_concurrency: float | None
    batch: int | None
    requests_rejected: int | None = None
    reserve_left_gib: float | None = None
    holds: bool = False
    preemptions: int | None = None
    steps: int | None = None

    @property
    def serves(self) -> bool:
        return self.holds and not self.requests_rejected


@dataclass(frozen=True, slots=True)
class Row:
    """One corpus, model and GPU; `problem` is why there are no figures, `worse` what `run` itself
    says is worse than defaults that serve the corpus, or that load spends more of the reserve.
    """

    corpus: str
    model: str
    gpu: str
    default: Side | None = None
    calibrated: Side | None = None
    retention: float = 1.0
    worst_retention: float = 1.0
    verdict: str = ""
    failed: tuple[str, ...] = ()
    worse: str = ""
    problem: str = ""
    commit: str = field(default_factory=commit)


def measured(corpus: str, model: str, gpus: Sequence[str], scratch: Path) -> Iterator[Row]:
    folder = scratch / corpus.replace(" ", "-")
    words = ["--model", model, "--data", str(folder)]
    if (asked := folder / "requests.jsonl").is_file():
        words += ["--requests", str(asked)]
    if "whisper" not in model:
        long = corpus in ("pictures and clips", "recordings", "nine images", "three modalities")
        words += ["--max-model-len", str(CLIPS_CONTEXT_TOKENS if long else CONTEXT_TOKENS)]
    out = scratch / "out" / f"{folder.name}-{model.replace('/', '_')}"
    for gpu, found, problem in calibrated(words, gpus, out):
        if found is None:
            yield Row(corpus, model, gpu, problem=problem)
        if found is None or (found.memory.calibrated.kv_cache_tokens and not found.traffic):
            continue  # A busy machine did not serve the requests in time: call again.
        failed = tuple(check.name for check in found.checks if check.status == "fail")
        worse = [c.detail for c in found.checks if c.code == "MM071" and c.status != "pass"]
        loads = (found.traffic.default, found.traffic.calibrated) if found.traffic else (None, None)
        default, tuned = (
            _side(memory, budget.max_num_batched_tokens, load, loads[0] or load)
            for memory, budget, load in (
                (found.memory.default, found.budget.default, loads[0]),
                (found.memory.calibrated, found.budget.calibrated, loads[1]),
            )
        )
        if loads[0] and loads[1] and spends_reserve(loads[1], loads[0]):
            worse.append("load takes the reserve below vLLM's slack")
        shares, said = retentions(found), " ".join(worse)
        yield Row(corpus, model, gpu, default, tuned, *shares, found.verdict, failed, said)


def _side(memory: Memory, batch: int | None, load: Traffic, usual: Traffic) -> Side:
    side = Side(memory.kv_cache_tokens, memory.max_concurrency, batch)
    if load is None or usual is None:
        return side
    return replace(
        side,
        requests_rejected=len(load.refused),
        reserve_left_gib=reserve_left(load, usual) / 2**30,
        holds=load.status != "fail",
        preemptions=load.preemptions,
        steps=load.steps,
    )


def page_of(rows: Sequence[Row]) -> str:
    """The report in Markdown."""
    counted = [row for row in rows if row.calibrated is not None]
    worse = [row for row in counted if row.worse]
    starts = [row for row in counted if row.default and row.default.kv_cache_tokens is None]
    passed = [row for row in counted if row.verdict == "pass"]
    ratios = [
        (row.calibrated.kv_cache_tokens / row.default.kv_cache_tokens, row.worse)
        for row in passed
        if row.default and row.default.kv_cache_tokens and row.default.serves
        if row.calibrated and row.calibrated.kv_cache_tokens and row.retention == 1
    ]
    # `run` prefers less only to defaults whose largest step has no room on the GPU.
    gains = sorted(ratio for ratio, worse in ratios if ratio >= 1 or worse)
    template = Path(__file__).with_suffix(".md.j2")
    found = {"rows": rows, "counted": counted, "passed": passed, "worse": worse, "starts": starts}
    more = {"context": CONTEXT_TOKENS, "clips_context": CLIPS_CONTEXT_TOKENS}
    more["unsafe"] = len(ratios) - len(gains)
    return page(template, {"figure": _figure}, gains=gains, **found, **more)


def _figure(value: float | None, missing: str = "does not start") -> str:
    if value is None:
        return missing
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", action="append", choices=CORPORA)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--gpu", action="append")
    parser.add_argument("--rows", type=Path, default=Path("reports/better-than-default.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("reports/better-than-default.md"))
    asked = parser.parse_args()
    done = {(row.corpus, row.model, row.gpu) for row in kept(asked.rows, Row)}
    with tempfile.TemporaryDirectory() as scratch:
        for corpus, write in CORPORA.items():
            folder = Path(scratch) / corpus.replace(" ", "-")
            folder.mkdir()
            write(folder, random.Random(SEED))
        for model in asked.model or MODELS:
            for corpus in (one for one in MODELS[model] if one in (asked.corpus or CORPORA)):
                gpus = [gpu for gpu in asked.gpu or GPUS if (corpus, model, gpu) not in done]
                rows = list(measured(corpus, model, gpus, Path(scratch))) if gpus else []
                keep(asked.rows, rows)
                for row in rows:
                    said = row.worse or row.problem or row.verdict
                    print(f"{corpus}, {model}, {row.gpu}: {said}", flush=True)
    order = [(model, corpus) for model in MODELS for corpus in MODELS[model]]
    rows = sorted(kept(asked.rows, Row), key=lambda row: order.index((row.model, row.corpus)))
    asked.out.write_text(page_of(rows), encoding="utf-8")
    return int(any(row.worse for row in rows))


if __name__ == "__main__":
    sys.exit(main())
