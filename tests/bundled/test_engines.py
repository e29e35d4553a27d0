"""Run eight families on vLLM's CPU engine: two full-width layers, one item per modality."""

from pathlib import Path

import pytest

import mmcalib
from mmcalib.checks.catalogue import ENGINE_START, REPLAY
from mmcalib.domain.shapes import MODALITIES
from mmcalib.limits.policy import Policy
from mmcalib.media.blank import write_blank
from mmcalib.models.catalogue import find_model
from tests.builders import some
from tests.bundled.shapes import CORPUS
from tests.e2e.media import requests

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]

FAMILIES = (
    "Qwen/Qwen2.5-VL-3B-Instruct",
    "Qwen/Qwen3-VL-2B-Instruct",
    "Qwen/Qwen3.5-0.8B",
    "google/gemma-3-4b-it",
    "OpenGVLab/InternVL3-2B",
    "llava-hf/llava-onevision-qwen2-0.5b-ov-hf",
    "Qwen/Qwen2-Audio-7B-Instruct",
    "mistral-community/pixtral-12b",
)


@pytest.mark.parametrize("model_id", FAMILIES)
def test_an_engine_starts_and_answers(model_id: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MMCALIB_CACHE_DIR", str(tmp_path / "cache"))
    modalities = some(find_model(model_id)).modalities
    media = tmp_path / "media"
    media.mkdir()
    taken = [modality for modality in MODALITIES if modality in modalities]
    paths = {m: write_blank(CORPUS[m], number, media) for number, m in enumerate(taken)}
    prompts = [[(str(modality), path.as_uri())] for modality, path in paths.items()]
    asked = requests(media / "requests.jsonl", *prompts)
    made = mmcalib.calibrate(
        model_id, media, requests=asked, policy=Policy(max_model_len=8192), validate="replay"
    )
    for wanted in (ENGINE_START, REPLAY):
        (check,) = (one for one in made.checks if one.name == wanted.name)
        assert check.status == "pass", check.detail
    answered = some(some(made.startup).replay)
    # Blank items of the same shapes fill the step.
    assert answered.prompts >= len(taken)
    assert (answered.rejected, answered.oom, answered.token_mismatches) == (0, 0, 0)
