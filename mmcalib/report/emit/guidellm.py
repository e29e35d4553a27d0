"""The corpus as loads for GuideLLM: its typical and its costliest pictures and clips.

Fields are those of `synthetic_image` and `synthetic_video` in guidellm/data/deserializers, August
2026. A load has one size; sides are even there.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mmcalib import wording
from mmcalib.derive.load_buckets import SizedItems
from mmcalib.derive.percentiles import quantile
from mmcalib.domain.shapes import ImageShape, VideoShape
from mmcalib.errors import OutputError
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.report.load import items_per_request, limit, sized_items
from mmcalib.result.calibration import CalibrationDocument

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "the costliest": 1.0}
_TARGET = "kind=openai_http,target=http://localhost:8000"


def guidellm_text(calibration: CalibrationDocument) -> str:
    """A script of one command per quantile of tokens. Raises OutputError where the corpus has
    nothing but sound.
    """
    found = sized_items(calibration)
    commands = [*_of(calibration, found, ImageShape), *_of(calibration, found, VideoShape)]
    if not commands:
        raise OutputError(
            "--emit guidellm: it makes pictures and clips, and the corpus has neither",
            hint="--emit args",
        )
    model = wording.plain(calibration.model.id)
    return f"# Loads of what {model} was calibrated for, by mmcalib.\n" + "".join(commands)


def _of(
    calibration: CalibrationDocument,
    found: list[SizedItems],
    kind: type[ImageShape] | type[VideoShape],
) -> Iterator[str]:
    mine = [one for one in found if isinstance(one.shape, kind)]
    tokens_of, items = [one.tokens for one in mine], [one.items for one in mine]
    said: set[str] = set()
    for name, share in _QUANTILES.items() if mine else ():
        tokens = quantile(tokens_of, items, share)
        shape = next(one.shape for one in mine if one.tokens == tokens)
        data = _data(calibration, shape)
        if data not in said:
            said.add(data)
            words = ["guidellm", "run", "--backend", _TARGET, "--data", data]
            yield f"# {shape.modality} of {tokens} tokens: {name}\n{shlex.join(words)}\n"


def _data(calibration: CalibrationDocument, shape: ImageShape | VideoShape) -> str:
    width, height = (max(2, side - side % 2) for side in (shape.width_px, shape.height_px))
    if isinstance(shape, VideoShape):
        return (
            f"kind=synthetic_video,width={width},height={height},frames={shape.num_frames},"
            f"fps={shape.fps:g}"
        )
    many = items_per_request(calibration, {"image": limit(calibration, "image")})
    return f"kind=synthetic_image,width={width},height={height},images_per_request={many}"


RENDERER = ConfigurationFormat("guidellm.sh", guidellm_text, use="sh {file}", variables=True)
