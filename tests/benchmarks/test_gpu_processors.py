"""The parts of the processors' benchmark that need no GPU: what is left, what is kept, and said."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmcalib.domain.shapes import Modality

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from gpu.lines import append
from gpu.processed import MODELS, UNSERVED, WHOLE, Bench, Line, corpus, read
from gpu.processors_page import render, verdict, wrong
from gpu.report import CPU_MARK

from mmcalib.models import find

MIB = 1 << 20


def made(tokens: int = 100, peak: int | None = None) -> dict[str, Any]:
    forms = [{"name": "pixel_values", "dtype": "uint8", "shape": [4 * tokens, 1176]}]
    seconds = 0.5 if peak is None else 0.1
    both = {"tokens": tokens, "embeds": tokens, "forms": forms}
    return {**both, "seconds": seconds, "peak_bytes": peak}


def line(item: str = "image/a.jpg", **changes: Any) -> Line:
    fields: dict[str, Any] = {
        "gpu": "NVIDIA H200",
        "vllm": "0.32.0",
        "device": "cuda",
        "model": MODELS[0],
        "modality": "image",
        "item": item,
        "cpu": made(),
        "other": made(peak=8 * MIB),
        "largest_difference": 1.0,
        "option": "--mm-processor-device",
        "threads": 16,
    }
    return Line(**{**fields, **changes})


ODD = line("image/odd.jpg", other=made(99, 4 * MIB))
REFUSED = line("image/huge.jpg", other=None, refusal="CUDA out of memory")
UNREADABLE = line("image/bad.jpg", cpu=None, other=None, refusal="cannot identify")
UNFIT = line(WHOLE, modality="audio", cpu=None, other=None, refusal="takes no | device")


def bench(tmp_path: Path, *, device: str = "cuda") -> Bench:
    paths = (tmp_path, tmp_path, tmp_path / "log", tmp_path / "r.jsonl")
    return Bench("NVIDIA H200", "0.32.0", device, *paths, time.monotonic() + 60)


def test_every_model_is_bundled_and_there_are_four() -> None:
    assert all(find(model) for model in MODELS)
    assert len(MODELS) >= 4


def test_a_corpus_is_the_files_below_each_modality(tmp_path: Path) -> None:
    for name in ("image/b.jpg", "image/deep/a.jpg", "audio/c.wav", "text/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = corpus(tmp_path)
    assert sorted(found) == [
        ("audio", "audio/c.wav"),
        ("image", "image/b.jpg"),
        ("image", "image/deep/a.jpg"),
    ]


def test_what_was_done_is_not_left_and_a_line_cut_short_is(tmp_path: Path) -> None:
    one = bench(tmp_path)
    append(one.results, asdict(line()))
    append(one.results, asdict(UNFIT))
    with one.results.open("ab") as file:
        file.write(b'{"gpu": "NVIDIA')
    items: list[tuple[Modality, str]] = [
        ("image", "image/a.jpg"),
        ("image", "image/b.jpg"),
        ("audio", "audio/c.wav"),
    ]
    assert one.left(MODELS[0], items) == [("image", "image/b.jpg")]
    assert one.left(MODELS[1], items) == items
    assert bench(tmp_path, device="cpu").left(MODELS[0], items) == items
    append(one.results, asdict(ODD))
    assert read(one.results) == [line(), UNFIT, ODD]


def test_items_that_differ_or_that_only_the_cpu_takes_miss_the_aim() -> None:
    found = [line(), ODD, REFUSED, UNREADABLE, UNFIT]
    assert [said.split(": ", 1)[1] for said in wrong(found)] == [
        "100 tokens on the CPU, 99 on cuda",
        "refused on cuda alone: CUDA out of memory",
    ]
    assert verdict(found) == "items that differ: 2 of 3 over 1 models: fail"
    assert verdict([line()]).endswith("0 of 1 over 1 models: pass")
    assert verdict([UNFIT]).endswith("fail")


def test_the_page_has_a_row_per_model_and_modality() -> None:
    page = render([line(), ODD, UNREADABLE, UNFIT], "python x")
    row = f"| {MODELS[0]} | image | 2 | 1 | 1 | 2.0 | 10.0 | 5.0× | 6.0 | 8.0 | 1 |"
    assert row in page.splitlines()
    assert "takes no \\| device" in page
    assert "serves a GPU by `--mm-processor-device`" in page
    assert CPU_MARK not in page


def test_what_a_model_does_not_take_is_no_row() -> None:
    unserved = line(WHOLE, modality="audio", cpu=None, other=None, refusal=UNSERVED)
    assert "| audio |" not in render([line(), unserved], "python x")


def test_a_failure_to_open_is_shown_until_it_is_opened() -> None:
    failed = line(WHOLE, modality=WHOLE, cpu=None, other=None, refusal="no room")
    assert "| all | 0 |" in render([failed], "python x")
    assert "| all |" not in render([failed, line()], "python x")


def test_a_page_of_the_cpu_says_that_it_compares_nothing() -> None:
    assert CPU_MARK in render([line(device="cpu", gpu="x86_64")], "python x")
