"""Requests that take more than startup reserves, and do not under what is then advised."""

from pathlib import Path
from typing import Any

import pytest

from mmcalib.models.gpus import resolve_gpu
from mmcalib.results.memory import TrafficFigures
from mmcalib.workflows.traffic.rehearse import rehearse
from tests.builders import some
from tests.e2e.command import checks_of
from tests.e2e.media import body, part, photo, sound, write_requests
from tests.e2e.test_validate import Judge, judge

pytestmark = [pytest.mark.engine, pytest.mark.long]
__all__ = ["judge"]
AUDIO, DEEPSTACK = "Qwen/Qwen2-Audio-7B-Instruct", "Qwen/Qwen3-VL-2B-Instruct"


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
    pictures = [part("image", photo(tmp_path / f"{n}.jpg", 576, 576, n)) for n in range(51)]
    asked_about = [(picture, 2) for picture in pictures] + [(pictures[-1], 3100)]
    bodies = (body(one, text="word " * words, max_tokens=2) for one, words in asked_about)
    requests = write_requests(tmp_path / "r.jsonl", bodies)
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
    bodies = (body(part("audio", one), text="word " * 2, max_tokens=2) for one in clips)
    requests = write_requests(tmp_path / "r.jsonl", bodies)
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
