"""Write blank media files of a given shape."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Final

from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape

# Largest denominator of a video's frame rate.
_MOST_DENOMINATOR: Final = 1001


def write_blank(shape: Shape, number: int, folder: Path) -> Path:
    """Write an item of this shape; `number` varies colour or tone. Videos need even sides."""
    colour = (number * 37 % 256, number * 101 % 256, (128 + number // 256) % 256)
    match shape:
        case ImageShape(width_px=width, height_px=height):
            from PIL import Image

            path = folder / f"image-{width}x{height}-{number}.png"
            Image.new("RGB", (width, height), colour).save(path, compress_level=1)
        case VideoShape(num_frames=frames, width_px=width, height_px=height):
            path = folder / f"video-{frames}x{width}x{height}-{number}.mp4"
            _write_video(shape, colour, path)
        case AudioShape(num_samples=samples, sample_rate_hz=rate):
            path = folder / f"audio-{samples}x{rate}-{number}.wav"
            import numpy as np
            import soundfile

            tone = 0.3 * np.sin(np.arange(samples) * (0.01 + number / 1000))
            soundfile.write(path, tone.astype(np.float32), rate)
    return path


def _write_video(shape: VideoShape, colour: tuple[int, ...], path: Path) -> None:
    import av
    import numpy as np

    rate = Fraction(shape.fps).limit_denominator(_MOST_DENOMINATOR)
    pixels = np.full((shape.height_px, shape.width_px, 3), colour, dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = shape.width_px, shape.height_px, "yuv420p"
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        (key_frame,) = (*stream.encode(frame), *stream.encode())
        # Every frame is the first again: encoding a minute of 1080p takes a minute.
        for number in range(shape.num_frames):
            packet = av.Packet(bytes(key_frame))
            packet.stream, packet.time_base, packet.is_keyframe = stream, 1 / rate, True
            packet.pts = packet.dts = number
            container.mux(packet)
