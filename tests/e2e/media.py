"""Small real media, made on the spot, so that these tests need no corpus."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from mmcalib.corpus.chat import PART_OF, text_part, url_part
from mmcalib.domain.shapes import Modality
from tests.odd_media import clips


def photo(path: Path, width: int, height: int, seed: int = 0) -> Path:
    """A JPEG of smooth noise, unlike every other seed's."""
    noise = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise).resize((width, height)).save(path, quality=80)
    return path


def clip(path: Path, width: int, height: int, frames: int) -> Path:
    """A clip of 10 frames a second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return clips(path, (width, height), frames=frames)


def part(modality: Modality, path: Path) -> dict[str, Any]:
    return url_part(PART_OF[modality], path.as_uri())


def body(*parts: dict[str, Any], text: str = "Describe.", **fields: Any) -> dict[str, Any]:
    """A request of one user message of a text and these parts."""
    return {"messages": [{"role": "user", "content": [text_part(text), *parts]}], **fields}


def write_requests(path: Path, bodies: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(one)}\n" for one in bodies), encoding="utf-8")
    return path


def requests(path: Path, *prompts: list[tuple[Any, str]]) -> Path:
    """A JSONL file with one request per list of (modality, URL)."""
    parts = ([url_part(PART_OF[modality], url) for modality, url in items] for items in prompts)
    return write_requests(path, (body(*one) for one in parts))


def sound(path: Path, seconds: float, rate_hz: int) -> Path:
    """A WAV of a rising tone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    time_s = np.arange(round(seconds * rate_hz)) / rate_hz
    soundfile.write(path, 0.3 * np.sin(2 * np.pi * (200 + 50 * time_s) * time_s), rate_hz)
    return path
