"""Small real media, as bytes."""

from __future__ import annotations

import io

import numpy as np
import soundfile
from PIL import Image


def png(width: int, height: int) -> bytes:
    ramp = np.arange(width * height * 3, dtype=np.uint32).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(ramp.reshape(height, width, 3)).save(file, "PNG")
    return file.getvalue()


def wav(samples: int = 8000, rate_hz: int = 16000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(samples) / 9) / 2, rate_hz, format="WAV")
    return file.getvalue()
