"""vLLM's own arguments beside the options of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mmcalib.errors import UsageError
from mmcalib.options.run import RunOptions, reject_derived_flags
from mmcalib.workflows.run.job import Job


@pytest.mark.parametrize("given", [{"max_model_len": 5}, {"limit_mm_per_prompt": {"image": 1}}])
def test_what_a_run_decides_is_said_to_the_run(given: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError, match="sets --"):
        Job(model="m", data=["d"], engine_args=given)


def test_a_pool_is_said_once() -> None:
    said = {"kv_cache_memory_bytes": 1 << 33}
    reject_derived_flags(said, pinned=False)
    with pytest.raises(UsageError, match="--pin-kv-cache exclude each other"):
        reject_derived_flags(said, pinned=True)


def job(*flags: str, **options: Any) -> Job:
    return Job.of(RunOptions(data=["d"], **options), gpu=None, flags=flags)


def test_the_model_may_come_from_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("kind: Pod\nargs: [--model, a/b, --max-model-len, '8192']\n")
    found = job("--max-num-seqs", "4", config=file)
    assert (found.model, found.config.source) == ("a/b", file)
    assert found.config.file_flags == ("--max-model-len", "8192")
    assert found.config.flags == ("--max-num-seqs", "4")
    assert job(config=file, model="c/d").model == "c/d"
    assert job("vllm", "serve", "e/f", "--max-model-len", "8192").model == "e/f"


def test_a_configuration_that_names_no_model_is_refused() -> None:
    with pytest.raises(UsageError, match="no model given") as refused:
        job()
    assert "--config FILE with one" in refused.value.hint
