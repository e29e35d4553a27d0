"""vLLM's own flags beside the options of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mmcalib.errors import UsageError
from mmcalib.options.given import refuse_own
from mmcalib.workflows.spec import Job


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--max-model-len", "32768"], "--max-model-len 32768"),
        (["--enable-lora", "--max_num_seqs=4"], "--max-num-seqs 64"),
        (["--limit-mm-per-prompt.image", "3"], "--count image=4"),
        (["--mm-processor-kwargs", "{}"], "--max-tokens-per-item N"),
    ],
)
def test_what_a_run_decides_is_said_to_the_run(words: list[str], hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        Job(model="m", data=["d"], flags=words)
    assert refused.value.hint.startswith(f"before the --: {hint}")


@pytest.mark.parametrize("given", [{"max_model_len": 5}, {"limit_mm_per_prompt": {"image": 1}}])
def test_so_it_is_in_a_program(given: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError, match="is derived"):
        Job(model="m", data=["d"], engine_args=given)


def test_a_pool_is_said_once() -> None:
    words = ["--kv-cache-memory-bytes", "8GiB"]
    refuse_own(words, {}, pinned=False)
    with pytest.raises(UsageError, match="--pin-kv-cache are one or the other"):
        refuse_own(words, {}, pinned=True)


def test_others_are_passed_on() -> None:
    refuse_own(["--tensor-parallel-size", "4", "-q", "awq", "--enable-lora"], {}, pinned=True)
