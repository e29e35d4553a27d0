"""Errors of the library speak of its arguments, those of the command line of its options."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import mmcalib
from mmcalib.errors import UsageError
from mmcalib.options.library_words import _known, library_words
from mmcalib.workflows.calibration.calibrate import calibrate as called_by_nobody
from tests.report.example import calibration

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"


@pytest.mark.parametrize(
    ("option", "argument"),
    [
        ("--gpu L4", 'gpu="L4"'),
        ("--max-model-len 32768, or fit", "Policy(max_model_len=32768), or fit"),
        ("--count image=4", 'Policy(count={"image": 4})'),
        ("--validate startup, or replay", 'validate="startup", or replay'),
        ("--data DIR or --requests FILE.jsonl", "data=DIR or requests=FILE.jsonl"),
        ("--concurrency needs --gpu", "concurrency needs gpu"),
        ("--media-io-kwargs '{\"video\": 1}'", 'Policy(media_io_kwargs={"video": 1})'),
        ("or name it in --allowed-media-domains", "or name it in allowed_media_domains"),
        (
            "mmcalib run --model MODEL --data DIR --out OUT writes one",
            "mmcalib.calibrate(model=MODEL, data=DIR) writes one",
        ),
        ("mmcalib plan --gpu L4 finds one", "mmcalib plan --gpu L4 finds one"),
        ("vLLM refuses it without --trust-request-mm-kwargs",) * 2,
        ("--startup-budget 90", "startup_budget_s=90"),
    ],
)
def test_options_as_arguments(option: str, argument: str) -> None:
    assert library_words(option) == argument


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({}, "nothing to calibrate for", "data=DIR or requests=FILE.jsonl"),
        (
            {"policy": {"concurrency": 4}},
            "concurrency needs gpu",
            'gpu="L4"',
        ),
        (
            {"policy": {"max_model_len": 0}},
            "max_model_len must be at least 1, not 0",
            "Policy(max_model_len=32768), or fit",
        ),
    ],
)
def test_calibrate_names_its_arguments(given: dict[str, Any], message: str, hint: str) -> None:
    data = ["media"] if given else []
    with pytest.raises(UsageError) as raised:
        mmcalib.calibrate(MODEL, data, **given)
    assert (raised.value.message, raised.value.hint) == (message, hint)
    assert raised.value.__notes__ == [f"try: {hint}"]
    with pytest.raises(UsageError) as raised:
        called_by_nobody(MODEL, data, **given)
    assert "--" in raised.value.message + raised.value.hint


def test_a_policy_from_a_dict() -> None:
    with pytest.raises(UsageError, match="a policy has no 'max_model_length'") as raised:
        mmcalib.calibrate(MODEL, "media", policy={"max_model_length": 8})
    assert raised.value.hint == "max_model_len"
    with pytest.raises(TypeError, match="policy is a Policy or a dict of its fields, not list"):
        mmcalib.calibrate(MODEL, "media", policy=[8])  # type: ignore[arg-type]


def test_remedies_of_admits(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    url = "https://example.com/a.png"
    answer = calibration().admits(url)
    assert answer.remedy == "check a local copy, or name its host in allowed_media_domains"
    parts = [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}]
    request = {"messages": [{"role": "user", "content": parts}]}
    with pytest.raises(UsageError) as raised:
        calibration().admits(request, allowed_local_media_path=tmp_path)
    assert raised.value.hint == "allowed_local_media_path=DIR"


def test_the_library_has_the_arguments_that_errors_name() -> None:
    named, _, _ = _known()
    for_calibrate = named - {"config", "flags"}
    assert for_calibrate <= set(inspect.signature(mmcalib.calibrate).parameters)
    assert {"config", "flags"} <= set(inspect.signature(mmcalib.validate).parameters)
