"""The user's policy for choosing limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from mmcalib.domain.knobs import Setting
from mmcalib.domain.shapes import Modality

Prefer = Literal["quality", "throughput", "detail"]
# For max_model_len: the smallest context for the covered prompts.
FIT: Literal["fit"] = "fit"

# What a change of the configuration costs its users: the one that they would miss least first.
Cost = Literal["nothing", "KV cache", "speed", "requests", "quality", "hardware"]
COSTS: Final[tuple[Cost, ...]] = get_args(Cost)

# Assumed for the answer, and for the text if there is none. A choice: prompts differ.
TEXT_RESERVE_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Policy:
    """How to choose limits. Tokens throughout; quantiles in (0, 1].

    `count` overrides the items per prompt of a modality. `coverage` is the share of prompts to
    admit by their item counts, over all modalities together or per modality.
    `max_tokens_per_item` caps every image and each pair of video frames. No image may shrink below
    `min_image_pixels`, and videos keep `min_video_frames` frames if they have them.
    Engine values of None are derived; `media_io_kwargs` is how the server will load media, in
    vLLM's spelling. `concurrency` is how many sequences of `max_model_len` the KV cache must hold,
    `ram_budget_bytes` the memory for processor caches.
    """

    prefer: Prefer = "quality"
    coverage: float | Mapping[Modality, float] = 1.0
    count: Mapping[Modality, int] = field(default_factory=dict)
    max_tokens_per_item: int | None = None
    min_image_pixels: int = 0
    min_video_frames: int = 0
    text_reserve_tokens: int = TEXT_RESERVE_TOKENS
    max_model_len: int | Literal["fit"] | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    concurrency: float | None = None
    ram_budget_bytes: int | None = None
    allow_under_reserve: bool = False
    media_io_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def context_tokens(self) -> int | None:
        """The context if set as a number."""
        return None if self.max_model_len == FIT else self.max_model_len

    @property
    def given_values(self) -> dict[str, Any]:
        """The engine values that are set."""
        names = (
            "max_model_len",
            "max_num_batched_tokens",
            "max_num_seqs",
            "gpu_memory_utilization",
        )
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def keeps_quality(self) -> bool:
        """True if no item may shrink for more throughput."""
        return self.prefer != "throughput" and self.max_tokens_per_item is None

    @property
    def raises_detail(self) -> bool:
        """True if items may take more than the model's default."""
        return self.prefer == "detail" and self.max_tokens_per_item is None

    @property
    def loader_setting(self) -> Setting:
        """The user's setting of loaders, fixed for all trials."""
        return Setting(media_io_kwargs=self.media_io_kwargs)
