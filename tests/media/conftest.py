"""Real files, made by the libraries that will read them."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

MakeImage = Callable[..., str]
MakeVideo = Callable[..., str]
MakeAudio = Callable[..., str]


@pytest.fixture
def make_image(tmp_path: Path) -> MakeImage:
    def make(name: str, width: int, height: int, orientation: int = 1, **options: Any) -> str:
        path = tmp_path / name
        ramp = np.linspace(0, 255, width * height * 3).astype(np.uint8).reshape(height, width, 3)
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(ramp).save(path, exif=exif, **options)
        return str(path)

    return make


@pytest.fixture
def make_video(tmp_path: Path) -> MakeVideo:
    def make(
        name: str,
        frames: int = 30,
        width: int = 64,
        height: int = 48,
        *,
        rotate: int = 0,
        sound: bool = False,
        codec: str = "mpeg4",
        **options: Any,
    ) -> str:
        path = tmp_path / name
        with av.open(str(path), "w", **options) as container:
            stream = container.add_stream(codec, rate=Fraction(10))
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            if rotate:
                stream.set_display_rotation(rotate)
            audio = container.add_stream("aac", rate=16000, layout="mono") if sound else None
            for number in range(frames):
                noise = np.random.default_rng(number).integers(0, 256, (height, width, 3))
                frame = av.VideoFrame.from_ndarray(noise.astype(np.uint8), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
            if audio is not None:
                silence = np.zeros((1, 16000), np.float32)
                quiet = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
                quiet.sample_rate = 16000
                container.mux(audio.encode(quiet))
                container.mux(audio.encode())
        return str(path)

    return make


@pytest.fixture
def make_audio(tmp_path: Path) -> MakeAudio:
    def make(name: str, samples: int = 8000, rate: int = 16000, channels: int = 1) -> str:
        path = tmp_path / name
        tone = np.sin(np.arange(samples * channels) / 9).reshape(samples, channels) / 2
        soundfile.write(path, tone, rate)
        return str(path)

    return make
