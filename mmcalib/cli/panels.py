"""Options of a long command, grouped in its help by what they are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmcalib.cli.command import OnceEach

# Of `run`, in the order of its help; every option stands in one of them.
RUN: Mapping[str, Sequence[str]] = {
    "What to calibrate for": (
        *("model", "config", "data", "requests", "census", "allowed_local_media_path"),
        "allowed_media_domains",
    ),
    "Reading it": (
        *("sample", "seed", "executor", "workers", "item_timeout_s", "no_cache", "ray_address"),
        "strict",
    ),
    "Policy: what to choose by": (
        *("policy", "count", "coverage", "prefer", "max_tokens_per_item", "min_image_pixels"),
        *("min_video_frames", "text_reserve_tokens", "max_model_len", "max_num_batched_tokens"),
        *("max_num_seqs", "gpu_memory_utilization", "concurrency", "ram_budget"),
        *("media_io_kwargs", "allow_under_reserve"),
    ),
    "The GPU that serves": (
        *("gpu", "gpu_memory", "capability", "serve_choices", "worst_order", "trials"),
        *("pin_kv_cache", "flags"),
    ),
    "Proof": ("validate", "startup_budget_s", "device", "encoder_sweep"),
    "Results": (
        *("out", "force", "emit", "no_thumbnails", "redact_paths", "as_json", "verbose", "quiet"),
        "help",
    ),
}


class RunHelp(OnceEach):
    """The help of `run`, with a heading above each group."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        lines = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and parameter.name is not None:
                lines[parameter.name] = record
        for heading, names in RUN.items():
            with formatter.section(heading):
                formatter.write_dl([lines.pop(name) for name in names if name in lines])
        if lines:
            with formatter.section("Options"):
                formatter.write_dl(list(lines.values()))
