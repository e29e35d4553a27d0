"""The opened model: its processors under any setting, and the limits of its server."""

from __future__ import annotations

import contextlib
import io
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

import av
import numpy as np

from mmcalib.child.failures import explain, is_incompatible
from mmcalib.child.knobs import find_knobs, tiles_images
from mmcalib.child.processor import MEDIA_ROOT, Processor
from mmcalib.child.texts import TextRenderer
from mmcalib.domain.knobs import DEFAULT, Knob, Setting
from mmcalib.domain.model import VARIABLES, ModelInfo, Server
from mmcalib.domain.shapes import MODALITIES
from mmcalib.engine.messages import OpenModel
from mmcalib.errors import NotMultimodal
from mmcalib.processes import own_priority
from mmcalib.releases import engine, processors
from mmcalib.releases import platform as platforms
from mmcalib.releases.release import version_of

# FFmpeg's codec name → an encoder in PyAV's FFmpeg, a container, and a pixel format.
_ENCODERS = {
    "h264": ("libx264", "mp4", "yuv420p"),
    "hevc": ("libx265", "mp4", "yuv420p"),
    "av1": ("libsvtav1", "mp4", "yuv420p"),
    "vp9": ("libvpx-vp9", "webm", "yuv420p"),
    "vp8": ("libvpx", "webm", "yuv420p"),
    "mpeg4": ("mpeg4", "mp4", "yuv420p"),
    "mjpeg": ("mjpeg", "avi", "yuvj420p"),
    "mpeg2video": ("mpeg2video", "mpegts", "yuv420p"),
    "mpeg1video": ("mpeg1video", "mpeg", "yuv420p"),
    "wmv2": ("wmv2", "asf", "yuv420p"),
    "flv1": ("flv", "flv", "yuv420p"),
    "prores": ("prores_ks", "mov", "yuv422p10le"),
    "dnxhd": ("dnxhd", "mov", "yuv422p"),
    "ffv1": ("ffv1", "matroska", "yuv420p"),
    "gif": ("gif", "gif", "rgb8"),
    "rawvideo": ("rawvideo", "avi", "yuv420p"),
}
_PROFILES = {"dnxhd": {"profile": "dnxhr_lb"}}
# The smallest size for DNxHR.
_WIDTH_PX, _HEIGHT_PX, _FRAMES, _FPS = 256, 128, 4, 25


def read_server(*, videos: bool) -> Server:
    """Read the server's limits; with `videos`, also test which codecs it decodes."""
    limits = platforms.read_variables(VARIABLES)
    server = Server(
        limits=limits,
        given=tuple(name for name in VARIABLES if name in os.environ),
        torchcodec=processors.decodes_by_torchcodec(),
    )
    if not videos:
        return server
    loader = processors.first_frames_loader()
    decodes: dict[str, bool] = {}
    with own_priority():
        for codec, encoding in _ENCODERS.items():
            with contextlib.suppress(av.FFmpegError, ValueError):
                decodes[codec] = _gets_frames(loader, _clip(*encoding))
        lone = _gets_frames(loader, _clip("mpeg4", "mp4", "yuv420p", frames=1))
    return replace(server, decodes=decodes, lone_frames=lone)


def _gets_frames(loader: Any, clip: bytes) -> bool:
    try:
        loaded = loader.load_bytes(clip)
    except Exception:  # noqa: BLE001 - any exception fails a server's request
        return False
    frames, _ = getattr(loaded, "media", loaded)
    return len(frames) > 0


def _clip(encoder: str, container: str, pixels: str, frames: int = _FRAMES) -> bytes:
    """Encode moving noise, because some codecs drop unchanged frames."""
    page = io.BytesIO()
    with av.open(page, "w", format=container) as file:
        stream: Any = file.add_stream(encoder, rate=Fraction(_FPS))
        stream.width, stream.height, stream.pix_fmt = _WIDTH_PX, _HEIGHT_PX, pixels
        stream.options = _PROFILES.get(encoder, {})
        stream.codec_context.thread_count = 1
        for number in range(frames):
            noise = np.random.default_rng(number).integers(0, 256, (_HEIGHT_PX, _WIDTH_PX, 3))
            frame = av.VideoFrame.from_ndarray(noise.astype(np.uint8), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return page.getvalue()


T = TypeVar("T")


class OpenedModel:
    """A multimodal checkpoint. Raises NotMultimodal, or vLLM's own error."""

    def __init__(self, request: OpenModel) -> None:
        self._args: dict[str, Any] = {
            "dtype": "bfloat16",
            **request.engine_args,
            "model": request.path,
            "load_format": "dummy",
            "allowed_local_media_path": MEDIA_ROOT,
        }
        if request.max_model_len is not None:
            self._args["max_model_len"] = request.max_model_len
        self._tries = request.search_knobs
        self.prompting = processors.PromptSettings.from_arguments(request.engine_args)
        self._processors: dict[str, Processor] = {}
        self._moved: dict[str, str] = {}
        default = self.with_setting(DEFAULT)
        self.config = default.config
        self.video_loader = processors.video_loader_name(default.config)

    def on_device(self, setting: Setting, device: str) -> Processor:
        """Return the processor on a torch device; its tensors stay on that device."""
        kwargs = {**setting.mm_processor_kwargs, "device": device}
        placed = replace(setting, mm_processor_kwargs=kwargs)
        # The option keeps the output on the device (`_postprocess_output`).
        return self.with_setting(placed, mm_tensor_ipc="torch_shm")

    def with_setting(self, setting: Setting, **more: Any) -> Processor:
        if setting.key not in self._processors:
            kwargs = {
                "mm_processor_kwargs": dict(setting.mm_processor_kwargs) or None,
                "media_io_kwargs": dict(setting.media_io_kwargs),
            }
            config = engine.model_config({**self._args, **kwargs, **more})
            if not config.is_multimodal_model:
                raise NotMultimodal(f"{config.model} is not a multimodal model")
            processor = processors.create_processor(config)
            self._processors[setting.key] = Processor(config, processor, setting)
        return self._processors[setting.key]

    @cached_property
    def engine_config(self) -> Any:
        return engine.serve_config(self._args)

    @cached_property
    def texts(self) -> TextRenderer:
        """The renderer of such a server; the first call takes seconds."""
        return TextRenderer(self)

    def describe(self) -> ModelInfo:
        default = self.with_setting(DEFAULT)
        supported = default.info.supported_mm_limits
        modalities = {name: supported[name] for name in MODALITIES if name in supported}
        scheduler = self.engine_config.scheduler_config
        if platforms.has_rust_front_end():
            part = "the counts of the Rust front end's own image processors"
            self._moved[part] = "VLLM_USE_RUST_FRONTEND=1, and only Python's were measured"

        def find() -> tuple[Knob, ...]:
            return tuple(find_knobs(default, self.with_setting)) if self._tries else ()

        return ModelInfo(
            architecture=self.config.architecture,
            modalities=modalities,
            max_model_len=self.config.max_model_len,
            knobs=self._unless_moved("knobs", find, ()),
            serve_defaults={
                "max_num_batched_tokens": scheduler.max_num_batched_tokens,
                "max_num_seqs": scheduler.max_num_seqs,
            },
            # On CUDA vLLM also forbids it for bidirectional attention (platforms/cuda.py, 0.32).
            chunks_mm_input=not (scheduler.disable_chunked_mm_input or self.config.is_mm_prefix_lm),
            video_loader=self.video_loader,
            audio_rate_hz=processors.audio_rate_hz(default.processor),
            device=platforms.current().device_type,
            starts_engines=platforms.starts_engines(),
            # Token counts depend on them.
            versions={
                "python": platform.python_version(),
                **{name: version_of(name) for name in ("torch", "transformers", "vllm")},
            },
            counted_by=processors.counter_name(default.processor),
            text_layers=int(getattr(self.config.hf_text_config, "num_hidden_layers", 0)),
            tiles_images=self._tries and "image" in supported and tiles_images(default),
            encoder_decoder=self.config.is_encoder_decoder,
            server=self._unless_moved(
                "the server's limits",
                lambda: read_server(videos=self._tries and "video" in supported),
                Server(),
            ),
            unavailable=self._moved,
        )

    def _unless_moved(self, part: str, ask: Callable[[], T], unknown: T) -> T:
        """Return the answer, or `unknown` if mmcalib does not fit this release."""
        try:
            return ask()
        except Exception as error:
            if not is_incompatible(error):
                raise
            self._moved[part], _ = explain(error)
            return unknown
