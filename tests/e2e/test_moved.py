"""A vLLM that is not as mmcalib knows it: one name less costs one capability, and no more."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mmcalib import calibrate
from mmcalib.engine.host import EngineHost
from mmcalib.errors import MmcalibError, VllmMoved
from mmcalib.workflows.traffic.rehearse import rehearse
from tests.builders import some
from tests.conftest import ROOT
from tests.e2e import moved
from tests.e2e.command import QWEN
from tests.e2e.media import photo
from tests.programs import executable

sys.path.insert(0, str(ROOT / "benchmarks"))

from compatibility.capabilities import capabilities

pytestmark = [pytest.mark.engine, pytest.mark.slow]
CUDA = "vllm.platforms.cuda:CudaPlatformBase"
TEXTS = "vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest.build_chat_params"
Lacks = Callable[[str], None]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lacks:
    """Makes every child's vLLM lack a name."""

    def lacks(missing: str) -> None:
        words = shlex.join([sys.executable, str(Path(moved.__file__)), missing])
        wrapper = executable(tmp_path / "python", f'#!/bin/sh\nexec {words} "$@"\n')
        monkeypatch.setitem(some(EngineHost.__init__.__kwdefaults__), "python", wrapper)

    return lacks


# With what needs it: a replayed request is rendered, too.
@pytest.mark.parametrize(
    ("missing", "lost"),
    [
        (CUDA, {"memory rehearsal": "moved", "serving rehearsal": "not tried"}),
        (TEXTS, {"text of requests": "moved", "replay": "moved"}),
    ],
    ids=["rehearsal", "texts"],
)
def test_one_capability_is_lost(without: Lacks, missing: str, lost: dict[str, str]) -> None:
    without(missing)
    found = capabilities()
    assert {one.name: one.state for one in found if one.state != "works"} == lost
    for one in found:
        if lost.get(one.name) == "moved":
            assert missing.rpartition(".")[2].rpartition(":")[2] in one.detail
            assert "mmcalib does not fit this vLLM" in one.detail


def test_a_run_goes_on_without_a_rehearsal(without: Lacks, tmp_path: Path) -> None:
    without(CUDA)
    photo(tmp_path / "media" / "a.jpg", 640, 480, 1)
    found = calibrate(QWEN, tmp_path / "media", gpu="L4", validate="budget")
    assert found.verdict == "pass"
    memory = next(check for check in found.checks if check.name == "memory on L4")
    assert memory.status == "warn"
    assert "CudaPlatformBase" in memory.detail
    assert found.limits["image"]


def test_what_cannot_go_on_ends_with_one_line(without: Lacks) -> None:
    without(CUDA)
    with pytest.raises(MmcalibError) as ended:
        rehearse(QWEN, gpu="L4")
    assert isinstance(ended.value, VllmMoved)
    assert "CudaPlatformBase" in ended.value.message
    shown = "mmcalib doctor (shows whether mmcalib is tested with this vLLM release); full log: "
    assert (ended.value.hint or "").startswith(shown)
