"""Small real media, made on the spot, so that these tests need no corpus."""

import json
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

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


def requests(path: Path, *prompts: list[tuple[str, str]]) -> Path:
    """A JSONL file with one request per list of (modality, URL)."""
    lines = []
    for items in prompts:
        content: list[dict[str, object]] = [{"type": "text", "text": "Describe."}]
        for modality, url in items:
            kind = f"{modality}_url"
            content.append({"type": kind, kind: {"url": url}})
        lines.append(json.dumps({"messages": [{"role": "user", "content": content}]}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def sound(path: Path, seconds: float, rate_hz: int) -> Path:
    """A WAV of a rising tone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    time_s = np.arange(round(seconds * rate_hz)) / rate_hz
    soundfile.write(path, 0.3 * np.sin(2 * np.pi * (200 + 50 * time_s) * time_s), rate_hz)
    return path
