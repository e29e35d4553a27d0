"""A corpus by its census: what of it is taken, and what of its media may be read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.corpus.shard import Shard
from mmcalib.domain.encoding import Encoded, Encoding
from mmcalib.domain.items import Skipped
from mmcalib.domain.shapes import AudioShape, ImageShape
from mmcalib.errors import CorpusError, UsageError
from mmcalib.files import write_texts
from mmcalib.locations.domains import allowing
from mmcalib.result.survey import Survey
from mmcalib.workflows.counted_before import counted_before
from mmcalib.workflows.read import files_of

PHOTO, TALK = ImageShape(8, 6), AudioShape(16_000, 8_000)
LONG = Encoding(file_mib=30, channels=2)


def written(out: Path, census: Census, shards: Sequence[Shard] = ()) -> Path:
    survey = Survey.of(census, PromptCensus(), files=census.items(), skipped=0, shards=shards)
    out.mkdir()
    write_texts({out / "census.json": survey.to_json()})
    return out


def test_how_files_hold_a_shape_is_kept(tmp_path: Path) -> None:
    census = Census()
    for path, encoding in (("/a.wav", LONG), ("/b.wav", Encoding(channels=2)), ("/c.wav", LONG)):
        census.add(TALK, path, encoding=encoding)
    census.add(PHOTO, "/a.png", 3)
    parts = [Census.of_encoded([one]) for one in census.encoded()]
    paths = [written(tmp_path / str(number), part) for number, part in enumerate(parts)]
    found = counted_before(paths).census
    assert list(found.encoded()) == list(census.encoded())
    kept = found.without(lambda file: file == Encoded(TALK, LONG))
    assert [(one.shape, one.count, one.exemplars) for one in kept.shapes()] == [
        (PHOTO, 3, ("/a.png",)),
        (TALK, 1, ("/b.wav",)),
    ]


def test_a_part_is_not_calibrated_for(tmp_path: Path) -> None:
    census = Census()
    census.add(PHOTO, "/a.png")
    first = written(tmp_path / "1", census, [Shard(2, 1)])
    with pytest.raises(UsageError, match="without shard 2/2"):
        counted_before([first])
    second = written(tmp_path / "2", Census(), [Shard(2, 2)])
    assert counted_before([first, second]).census == census
    with pytest.raises(CorpusError, match="holds no media"):
        counted_before([written(tmp_path / "none", Census())])


def test_remote_media_are_read_where_that_was_asked_for(tmp_path: Path) -> None:
    census = Census()
    census.add(PHOTO, "memory://bucket/a.png")
    out = written(tmp_path / "1", census)
    media = [("image", "memory://bucket/a.png"), ("image", str(tmp_path / "none.png"))]
    for allowed, why in (("", "remote media: its host"), ("bucket", "no such file")):
        with allowing([allowed]):
            remote, local = files_of(counted_before([out]))(media)  # type: ignore[arg-type]
        assert isinstance(remote, Skipped)
        assert isinstance(local, Skipped)
        assert remote.reason.startswith(why)
        assert (remote.out_of_reach, local.out_of_reach) == (True, True)
