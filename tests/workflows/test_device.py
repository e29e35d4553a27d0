"""What `--device cuda` needs before anything is read."""

from __future__ import annotations

from typing import Any

import pytest

from mmcalib.errors import UsageError
from mmcalib.proof.devices import cpu_build, require_cuda
from mmcalib.workflows.run.run import calibrate


def test_without_cuda_nothing_is_read() -> None:
    with pytest.raises(UsageError, match="no GPU that CUDA can see") as refused:
        require_cuda("cuda", has_gpu=lambda: False)
    assert refused.value.hint == "--device cpu"
    require_cuda("cpu", has_gpu=lambda: False)


def test_a_build_for_the_cpu_is_refused_beside_a_gpu() -> None:
    build = cpu_build()
    if not build:
        pytest.skip("needs vLLM's CPU build")
    with pytest.raises(UsageError, match="is built for the CPU") as refused:
        require_cuda("cuda", has_gpu=lambda: True)
    assert build in refused.value.message
    assert "pip install" in refused.value.hint


def test_the_library_refuses_a_word_that_is_no_device(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="--device gpu: no such choice"):
        calibrate("m", tmp_path, device="gpu")  # type: ignore[arg-type]
