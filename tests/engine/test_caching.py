"""A child's answers are asked for once."""

import os
import signal
from pathlib import Path

import pytest
from PIL import Image

from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.shapes import ImageShape, VideoShape
from mmcalib.engine.host import CachingHost
from mmcalib.engine.messages import Blank, ComputeBudget, File, Measure, Measured, OpenModel
from mmcalib.errors import EngineDied, VllmRefused
from tests.engine.conftest import QWEN, folder_of

# More than any machine that runs tests has memory for.
VAST = Blank(VideoShape(32, 8.0, 4.0, 200_000, 200_000))


def answered(host: CachingHost, subjects: tuple[Blank | File, ...]) -> list[Measured]:
    return list(host.measure(Measure(DEFAULT, subjects), "measuring"))


@pytest.mark.engine
def test_what_was_heard_once_needs_no_child(engine_cache, tmp_path: Path, with_vllm: None) -> None:
    path = tmp_path / "photo.png"
    Image.new("RGB", (640, 480)).save(path)
    both = (File("image", str(path)), Blank(ImageShape(640, 480)))
    with CachingHost() as host:
        host.ask(OpenModel(str(folder_of(QWEN, engine_cache)), search_knobs=False), "opening")
        before = answered(host, both)
        (vast,) = answered(host, (VAST,))
        refused = ComputeBudget({"model": str(tmp_path)}, build_dummy=False)
        with pytest.raises(VllmRefused):
            host.ask(refused, "computing the encoder budget")
        os.kill(host.pid, signal.SIGKILL)
        assert answered(host, both) == before
        with pytest.raises(VllmRefused):
            host.ask(refused, "computing it again")
        assert vast.refused_by == "host_memory"
        with pytest.raises(EngineDied):
            answered(host, (VAST,))
        host.revive()
        (icon,) = answered(host, (Blank(ImageShape(64, 64)),))
    assert icon.cost is not None, "it has the model open again"
