"""Verdicts in bytes of whole configurations, and the same files after the cure that they name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mmcalib.memory.rehearse import gpu_of
from mmcalib.workflows.validate.config import Media
from tests.e2e.media import sound
from tests.e2e.test_validate import Judge, checks, judge

pytestmark = [pytest.mark.engine, pytest.mark.long]

__all__ = ["judge"]


def test_four_sequences_beside_a_cache_that_is_never_emptied(judge: Judge) -> None:
    """Finding §3 of the server conformance work: Qwen3-VL-8B, `max_num_seqs 4`, said 1,296 of 1,296
    tokens while 15,088 more stay resident, 494 MB.
    """
    text = (
        "max-num-seqs: 4\nmax-model-len: 32768\nlimit-mm-per-prompt: {image: 1, video: 0}\n"
        "mm-processor-kwargs: {size: {longest_edge: 331776, shortest_edge: 65536}}\n"
    )
    model, gpu = "Qwen/Qwen3-VL-8B-Instruct", gpu_of("H100-80G")
    found = judge(f"{text}max-num-batched-tokens: 16384\n", model=model, gpu=gpu)
    check = checks(found)["adequately reserved"]
    assert check.status == "fail"
    assert "under-reserved by 0.46 GiB: the language model's step" in check.detail
    assert "beside 16,384 tokens in the encoder cache (0.50 GiB)" in check.detail
    cure, other = check.remedy.splitlines()
    assert yaml.safe_load(other) == {"max-num-seqs": 51}
    mended = checks(judge(f"{text}{cure}\n", model=model, gpu=gpu))["adequately reserved"]
    assert mended.status == "pass", mended.detail


def test_clips_of_a_second_that_are_padded_to_half_a_minute(judge: Judge, tmp_path: Path) -> None:
    """Finding §4 of the server conformance work: 0.15 GiB of 0.24 were said where 90 such clips
    take gigabytes.
    """
    for number in range(3):
        sound(tmp_path / f"media/{number}.wav", 1.0, 16_000)
    media, gpu = Media(data=(tmp_path / "media",)), gpu_of("L40S")
    text = "limit-mm-per-prompt: {audio: 1}\nmax-num-batched-tokens: 2250\n"
    model = "Qwen/Qwen2-Audio-7B-Instruct"
    found = checks(judge(text, model=model, gpu=gpu, media=media))
    check = found["adequately reserved"]
    assert check.status == "fail"
    assert "the costliest step, 90 items such as" in check.detail
    assert "takes 4.31 GiB; the profile reserves 0.24 GiB, rehearsed" in check.detail
    assert "audio input reserved" not in found
    fewer, reserved = check.remedy.splitlines()
    assert reserved.startswith("max-num-seqs: 90 and max-num-batched-tokens: ")
    batch = int(reserved.partition("  # costs ")[0].rpartition(" ")[2])
    assert batch % 750 == 0
    assert 2250 < batch <= 90 * 750
    mended = checks(judge(f"{text}{fewer}\n", model=model, gpu=gpu, media=media))
    assert mended["adequately reserved"].status == "pass", mended["adequately reserved"].detail
