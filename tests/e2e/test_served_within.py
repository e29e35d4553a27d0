"""Requests that take more than startup reserves, and do not under what is then advised."""

import json
from pathlib import Path
from typing import Any

import pytest

from mmcalib.models.gpus import resolve_gpu
from mmcalib.results.memory import TrafficFigures
from mmcalib.workflows.traffic.rehearse import rehearse
from tests.builders import some
from tests.e2e.command import checks_of
from tests.e2e.media import photo, sound
from tests.e2e.test_validate import Judge, judge

pytestmark = [pytest.mark.engine, pytest.mark.long]
__all__ = ["judge"]
AUDIO, DEEPSTACK = "Qwen/Qwen2-Audio-7B-Instruct", "Qwen/Qwen3-VL-2B-Instruct"


def asking(path: Path, *items: tuple[str, Path, int]) -> Path:
    """Requests of a file each, beside so many words, and of an answer of two tokens."""
    lines = []
    for kind, file, words in items:
        media = {"type": kind, kind: {"url": str(file)}}
        content = [media, {"type": "text", "text": "word " * words}]
        message = {"role": "user", "content": content}
        lines.append(json.dumps({"messages": [message], "max_tokens": 2}))
    path.write_text("\n".join(lines) + "\n")
    return path


def served(tmp_path: Path, model: str, text: str, **asked: Any) -> TrafficFigures:
    config = tmp_path / "serving.yaml"
    config.write_text(f"model: {model}\n{text}")
    (rehearsed,) = rehearse(configs=[config], allowed_root=tmp_path, **asked)
    found = some(rehearsed.traffic)
    assert found.served == found.requests
    assert not found.refused
    return found


def test_a_step_beside_outputs_of_four_levels(judge: Judge, tmp_path: Path) -> None:
    """Qwen3-VL caches deepstack's three levels; startup holds 4 pictures."""
    pictures = [photo(tmp_path / f"{n}.jpg", 576, 576, n) for n in range(51)]
    items = [("image_url", picture, 2) for picture in pictures]
    requests = asking(tmp_path / "r.jsonl", *items, ("image_url", pictures[-1], 3100))
    text = (
        "max-num-seqs: 4\nmax-model-len: 20000\nlimit-mm-per-prompt: {image: 1, video: 0}\n"
        "mm-processor-kwargs: {size: {longest_edge: 331776, shortest_edge: 65536}}\n"
    )
    written, gpu = f"{text}max-num-batched-tokens: 16384\n", resolve_gpu("L4")
    asked: dict[str, Any] = {"requests": [requests], "gpu": gpu}
    before = served(tmp_path, DEEPSTACK, written, **asked)
    assert before.status == "warn"
    assert before.most_cache_tokens > 50 * 324 - 1
    assert before.cache_logical_bytes == before.most_cache_tokens * 4 * 2048 * 2
    check = checks_of(judge(written, model=DEEPSTACK, gpu=gpu))["memory reserve"]
    assert check.status == "warn", "as it is served: beyond the reserve, in free memory"


def test_clips_of_a_second(judge: Judge, tmp_path: Path) -> None:
    """Each is padded to half a minute, and vLLM bounds a step by tokens."""
    clips = [sound(tmp_path / f"media/{n}.wav", 1 + n / 1000, 16_000) for n in range(90)]
    requests = asking(tmp_path / "r.jsonl", *(("audio_url", one, 2) for one in clips))
    text = "limit-mm-per-prompt: {audio: 1}\nmax-num-batched-tokens: 2250\nmax-model-len: 4096\n"
    gpu = resolve_gpu("L40S")
    asked: dict[str, Any] = {"requests": [requests], "gpu": gpu}
    before = served(tmp_path, AUDIO, text, **asked)
    assert before.status != "pass"
    # 39 clips a step, with the words of the template.
    assert before.peak_bytes > 7 * before.reserved_bytes
    data = (tmp_path / "media",)
    check = checks_of(judge(text, model=AUDIO, gpu=gpu, data=data))["memory reserve"]
    assert check.status == "fail"
    for remedy in check.remedy.splitlines():
        kept = text.replace("max-num-batched-tokens: 2250\n", "") if "batched" in remedy else text
        after = served(tmp_path, AUDIO, kept + remedy.replace(" and ", "\n") + "\n", **asked)
        assert after.status != "fail", (remedy, after.margin_bytes, check.remedy)


def test_four_sequences_beside_a_cache_that_is_never_emptied(judge: Judge) -> None:
    """Qwen3-VL-8B keeps 15,088 tokens (494 MB) beyond the 1,296 reserved."""
    text = (
        "max-num-seqs: 4\nmax-model-len: 32768\nlimit-mm-per-prompt: {image: 1, video: 0}\n"
        "mm-processor-kwargs: {size: {longest_edge: 331776, shortest_edge: 65536}}\n"
    )
    model, gpu = "Qwen/Qwen3-VL-8B-Instruct", resolve_gpu("H100-80G")
    found = judge(f"{text}max-num-batched-tokens: 16384\n", model=model, gpu=gpu)
    check = checks_of(found)["memory reserve"]
    assert check.status == "warn"
    assert "beside 16,384 tokens in the encoder cache (0.50 GiB)" in check.detail
    assert "vLLM does not reserve 0.46 GiB of it" in check.detail
    more = text.replace("max-num-seqs: 4", "max-num-seqs: 51")
    found = judge(f"{more}max-num-batched-tokens: 16384\n", model=model, gpu=gpu)
    assert checks_of(found)["memory reserve"].status == "pass"
