"""Small real media, as bytes, and requests over media."""

import io
import json

import numpy as np
import soundfile
from PIL import Image


def png(width: int = 9, height: int = 8) -> bytes:
    ramp = np.arange(width * height * 3, dtype=np.uint32).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(ramp.reshape(height, width, 3)).save(file, "PNG")
    return file.getvalue()


def wav(samples: int = 8000, rate_hz: int = 16000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(samples) / 9) / 2, rate_hz, format="WAV")
    return file.getvalue()


def request(*urls: str, text: str = "What is this?") -> str:
    """A line of a file of requests."""
    parts: list[dict[str, object]] = [{"type": "image_url", "image_url": {"url": u}} for u in urls]
    content = [*parts, {"type": "text", "text": text}]
    return json.dumps({"messages": [{"role": "user", "content": content}]})
