"""Sizes of the blank items by which releases of vLLM are compared: the user's, or usual ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from mmcalib.census.sample import choose
from mmcalib.domain.shapes import MODALITIES, AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.errors import CorpusError
from mmcalib.progress import Progress
from mmcalib.wording import several_are
from mmcalib.workflows.read import read
from mmcalib.workflows.spec import cache_dir

_VIDEO_FPS: Final = 30
_AUDIO_HZ: Final = 16_000
# Of pictures: VGA, a square, Full HD, a slim page, 12 megapixels of a telephone.
_IMAGES: Final = ((640, 480), (1024, 1024), (1920, 1080), (1240, 3508), (4032, 3024))
# Of clips: seconds, width, height.
_VIDEOS: Final = ((3, 640, 360), (10, 1280, 720), (60, 640, 360))
_AUDIO_S: Final = (5, 30, 120)

# Of the user's, per modality.
_OF_CORPUS: Final = 8

_ITEMS: Final[dict[Modality, tuple[Shape, ...]]] = {
    "image": tuple(ImageShape(width, height) for width, height in _IMAGES),
    "video": tuple(
        VideoShape(seconds * _VIDEO_FPS, float(_VIDEO_FPS), float(seconds), width, height)
        for seconds, width, height in _VIDEOS
    ),
    "audio": tuple(AudioShape(seconds * _AUDIO_HZ, _AUDIO_HZ) for seconds in _AUDIO_S),
}


def shapes_of(data: Sequence[str | Path], progress: Progress) -> tuple[Shape, ...]:
    """The extremes of the media, by their headers, and the rest of a few at random; usual sizes
    where none are named. Raises CorpusError and UsageError.
    """
    if not data:
        return tuple(shape for shapes in _ITEMS.values() for shape in shapes)
    found = read(data, (), allowed_root=None, cache=cache_dir(), progress=progress)
    if found.skipped:
        progress.note(f"{several_are(len(found.skipped), 'item')} left out: mmcalib scan says why")
    return tuple(shape for shape, _ in choose(found.census, _OF_CORPUS, seed=0))


def taken(shapes: Iterable[Shape], modalities: Iterable[Modality]) -> tuple[Shape, ...]:
    """Those that a model takes. Raises CorpusError where it takes none."""
    found = tuple(shape for shape in shapes if shape.modality in set(modalities))
    if not found:
        takes = ", ".join(m for m in MODALITIES if m in set(modalities))
        raise CorpusError(
            f"nothing in --data can be compared: the model takes {takes}",
            hint="leave --data out: items of usual sizes are compared then",
        )
    return found
