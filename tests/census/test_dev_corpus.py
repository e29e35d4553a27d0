"""Our headers against ffprobe's and Pillow's word on 88 real files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mmcalib.census.counter import Prober, count_corpus
from mmcalib.corpus.folder import FolderSource
from mmcalib.domain.items import Item
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.media.decode import decode_check
from mmcalib.media.probe import probe
from tests.census.looking import Inline

SHARED = Path(os.environ.get("MMCALIB_SHARED") or Path(__file__).parents[3] / "shared")
DEV = SHARED / "corpora" / "dev"
MANIFEST = SHARED / "corpora" / "dev.manifest.jsonl"

pytestmark = pytest.mark.skipif(
    not MANIFEST.is_file(), reason=f"no dev corpus at {DEV}; MMCALIB_SHARED says where it is"
)


def manifest() -> list[dict[str, Any]]:
    if not MANIFEST.is_file():
        return []
    return [json.loads(line) for line in MANIFEST.read_text().splitlines()]


@pytest.mark.parametrize("truth", manifest(), ids=lambda truth: truth["path"])
def test_header_and_decoding_agree_with_the_manifest(truth: dict[str, Any]) -> None:
    path = str(DEV / truth["path"])
    shape = probe(Item(path, truth["kind"]))
    match shape:
        case ImageShape():
            oriented = (truth["oriented_width"], truth["oriented_height"])
            assert (shape.width_px, shape.height_px) == oriented
        case VideoShape():
            size = (truth["width"], truth["height"], truth["frames"])
            assert (shape.width_px, shape.height_px, shape.num_frames) == size
            assert shape.fps == pytest.approx(truth["fps"], rel=1e-6)
            # The manifest's duration is the container's; one file has a longer sound track.
            assert shape.duration_s == pytest.approx(truth["duration"], abs=0.04)
        case AudioShape():
            assert shape.sample_rate_hz == truth["sample_rate"]
            assert shape.duration_s == pytest.approx(truth["duration"], abs=1e-6)
        case _:
            pytest.fail(str(shape))
    assert decode_check(Item(path), shape.modality) is None


def test_the_whole_corpus() -> None:
    taken = count_corpus([FolderSource(DEV)], Prober(Inline(probe)))
    assert taken.skipped == []
    kinds = [truth["kind"] for truth in manifest()]
    assert taken.files == len(kinds) == 88
    assert {modality: taken.census.items(modality) for modality in taken.census.modalities()} == {
        kind: kinds.count(kind) for kind in ("image", "video", "audio")
    }
