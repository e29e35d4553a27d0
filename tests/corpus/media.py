"""Small real media, as bytes, and requests over media."""

import base64
import io
import json
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from mmcalib.corpus.chat import url_part


def png(width: int = 9, height: int = 8) -> bytes:
    ramp = np.arange(width * height * 3, dtype=np.uint32).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(ramp.reshape(height, width, 3)).save(file, "PNG")
    return file.getvalue()


def wav(samples: int = 8000, rate_hz: int = 16000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(samples) / 9) / 2, rate_hz, format="WAV")
    return file.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def asking(*urls: str, text: str = "What is this?") -> dict[str, Any]:
    """A request about these pictures."""
    parts = [url_part("image_url", url) for url in urls]
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]}


def request(*urls: str, text: str = "What is this?") -> str:
    """A line of a file of requests."""
    return json.dumps(asking(*urls, text=text))
