"""Real files, made by the libraries that will read them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

Make = Callable[..., str]


@pytest.fixture
def make_image(tmp_path: Path) -> Make:
    def make(name: str, width: int, height: int, orientation: int = 1, **options: Any) -> str:
        path = tmp_path / name
        ramp = np.linspace(0, 255, width * height * 3).astype(np.uint8).reshape(height, width, 3)
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(ramp).save(path, exif=exif, **options)
        return str(path)

    return make


@pytest.fixture
def make_audio(tmp_path: Path) -> Make:
    def make(name: str, samples: int = 8000, rate: int = 16000, channels: int = 1) -> str:
        path = tmp_path / name
        tone = np.sin(np.arange(samples * channels) / 9).reshape(samples, channels) / 2
        soundfile.write(path, tone, rate)
        return str(path)

    return make
