"""Memory figures for documents, and a formula for figures without a rehearsal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mmcalib.derive.costs import CostTable
from mmcalib.derive.limits import ProfileReserve, compute_reserve, resident_items
from mmcalib.domain.knobs import Label
from mmcalib.domain.memory import Budget, RehearsedMemory
from mmcalib.models.cut import read_config
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.proof.start import Started
from mmcalib.releases.constants import GPU_MEMORY_UTILIZATION, UNIFIED_NON_TORCH_BYTES
from mmcalib.results.memory import EncoderBudget, Memory, Rehearsal
from mmcalib.version import __version__

Config = Mapping[str, Any]

# Embedded patches, residual stream, the layer's input and output.
_STREAMS = 4
# Query, key and value, their rotated and contiguous copies, and five streams.
_ROTARY_STREAMS = 12
_CHANNELS = 3
_DTYPE_BYTES = 2
# Audio encoders name the width of their feed-forward layer either way.
_WIDENED = {"encoder_ffn_dim", "intermediate_size"}
# GLM-4V's blocks are as wide inside as the output; `intermediate_size` is its merger's.
_WIDENED_TO_OUTPUT = "glm4v"
_FRAMES_PER_PATCH = 2
_NESTED_MERGE = "img_token_compression_config"


@dataclass(frozen=True, slots=True)
class Encoder:
    """Widths of one encoder. A position (patch or audio frame) has `inputs` numbers, each of
    `input_bytes` (vLLM sends Qwen-VL's pixels as bytes). `merge` positions make a token, or each of
    at most `tiles` tiles has `per_tile` positions.
    """

    hidden: int
    intermediate: int
    gated: bool
    rotary: bool = False
    merge: int = 0
    per_tile: int = 0
    tiles: int = 1
    tiles_follow_tokens: bool = False
    inputs: int = 0
    input_bytes: int = 2
    # Numbers of a position that taps in earlier layers keep for the output.
    kept: int = 0

    def peak_bytes(self, items: int, tokens_per_item: int) -> int:
        """Peak bytes in the widest layer for a batch of `items`."""
        tiles = self.tiles
        if self.tiles_follow_tokens:
            tiles = max(1, min(tiles, tokens_per_item // self.per_tile))
        each = tokens_per_item * self.merge if self.merge else tiles * self.per_tile
        widest = (3 if self.gated else 2) * self.intermediate + _STREAMS * self.hidden
        if self.rotary:
            widest = max(widest, _ROTARY_STREAMS * self.hidden)
        return items * each * (_DTYPE_BYTES * (widest + self.kept) + self.input_bytes * self.inputs)


def encoder_of(config: Config, modality: str) -> Encoder | None:
    """Return a modality's encoder from a checkpoint's config.json; None for an unknown family."""
    model = config.get("thinker_config", config)
    if modality == "audio":
        audio = model.get("audio_config", model)
        return _audio(audio) if _WIDENED & audio.keys() else None
    vision = model.get("vision_config")
    if not isinstance(vision, Mapping) or modality not in ("image", "video"):
        return None
    if vision.get("model_type") == "pixtral":
        side = model.get("spatial_merge_size", 1)
        return _patched(vision, side) if modality == "image" else None
    # MiniMax-M3 nests its merge; beside it stands a grid of tiles that nothing cuts.
    if "spatial_merge_size" in (one := {**vision, **(vision.get(_NESTED_MERGE) or {})}):
        return _merging(one)
    if "pooling_kernel_size" in vision and "hidden_size" in vision:
        return _patched(vision, vision["pooling_kernel_size"])
    sized = {"image_size", "intermediate_size"} <= vision.keys() and modality == "image"
    # A model with another size of its own encodes slices of that size, or of any.
    if sized and model.get("image_size") in (None, vision["image_size"]):
        return _tiled(model, vision)
    return None


def _merging(vision: Config) -> Encoder:
    """Qwen-VL family: patches of the image, several of which become one token."""
    # Qwen2-VL calls the encoder's width embed_dim, and its output's width hidden_size.
    hidden = int(vision.get("embed_dim", vision["hidden_size"]))
    intermediate = int(vision.get("intermediate_size", hidden * int(vision.get("mlp_ratio", 4))))
    if str(vision.get("model_type")).startswith(_WIDENED_TO_OUTPUT):
        intermediate = int(vision["out_hidden_size"])
    merge = int(vision["spatial_merge_size"]) ** 2
    taps = len(vision.get("deepstack_visual_indexes") or ())
    return Encoder(
        hidden,
        intermediate,
        gated=vision.get("hidden_act") == "silu",
        rotary=True,
        merge=merge,
        kept=taps * int(vision.get("out_hidden_size", 0)) // merge,
        inputs=_CHANNELS * _FRAMES_PER_PATCH * int(vision["patch_size"]) ** 2,
        input_bytes=1,
    )


def _patched(vision: Config, merged_side: Any) -> Encoder:
    """Pixtral, Mistral Small 3, Gemma 4: patches of an image or frame, merged in squares."""
    return Encoder(
        int(vision["hidden_size"]),
        int(vision["intermediate_size"]),
        gated=True,
        rotary=True,
        merge=int(merged_side) ** 2,
        inputs=_CHANNELS * int(vision["patch_size"]) ** 2,
    )


def _tiled(model: Config, vision: Config) -> Encoder:
    """CLIP and similar: tiles of equal size, each encoded whole."""
    side, patch = _edge(vision["image_size"]), _edge(vision["patch_size"])
    tiles = 1 + int(model.get("max_dynamic_patch") or 0)
    if pinpoints := model.get("image_grid_pinpoints"):
        tiles = 1 + max((width // side) * (height // side) for width, height in pinpoints)
    return Encoder(
        int(vision["hidden_size"]),
        int(vision["intermediate_size"]),
        gated=False,
        per_tile=(side // patch) ** 2,
        tiles=tiles,
        tiles_follow_tokens=bool(pinpoints),
        inputs=_CHANNELS * patch**2,
    )


def _edge(size: Any) -> int:
    """Return the side of a square; InternVL's -HF configs list both sides."""
    return int(size[0] if isinstance(size, list) else size)


def _audio(audio: Config) -> Encoder:
    """Whisper and similar: a clip of any length takes the positions of 30 s."""
    return Encoder(
        int(audio.get("d_model") or audio["hidden_size"]),
        int(audio.get("encoder_ffn_dim") or audio["intermediate_size"]),
        gated=False,
        per_tile=int(audio["max_source_positions"]),
        inputs=2 * int(audio.get("num_mel_bins", 80)),
    )


def estimate_bytes(budget: Budget | None, model_path: str) -> int | None:
    """Estimate the peak of vLLM's profile from the checkpoint's config; None without a formula."""
    if budget is None or budget.profiled_modality is None:
        return None
    encoder = encoder_of(read_config(Path(model_path)), budget.profiled_modality)
    if encoder is None:
        return None
    tokens = budget.max_tokens_per_item[budget.profiled_modality]
    # A position makes at most one token, so the config does not name all tiles.
    if encoder.per_tile and tokens > encoder.tiles * encoder.per_tile:
        return None
    return encoder.peak_bytes(budget.profiled_items, tokens)


# Labels of the figures in a rehearsal that are not rehearsed.
_LABELS: Final[dict[str, Label]] = {
    **dict.fromkeys(("non_torch_bytes", "cudagraph_bytes"), "assumed"),
    **dict.fromkeys(("kv_cache_bytes", "kv_cache_tokens"), "computed"),
    **dict.fromkeys(("max_concurrency", "encoder_cache_bytes", "outside_bytes"), "computed"),
    **dict.fromkeys(("most_utilization", "starts", "stack_bytes"), "computed"),
    "free_bytes": "assumed",
}


def memory_figures(result: RehearsedMemory, gpu: Gpu) -> Memory:
    """Return a memory entry of calibration.json, each figure with its label."""
    phases = {phase.name: phase.peak_bytes for phase in result.phases}
    if result.prefill is not None:
        phases["language model, served"] = result.prefill.phase.peak_bytes
    total: Label = "given" if gpu.total_status == "given" else "assumed"
    most = result.max_concurrency
    return Memory.from_value(
        result,
        phases=phases,
        max_concurrency=None if most is None else round(most, 2),
        label="rehearsed",
        kv_cache_range_bytes=_kv_cache_range(result, gpu),
        labels={
            "total_bytes": total,
            **_LABELS,
            **({} if gpu.free_bytes is None else {"free_bytes": "given"}),
        },
        gpu=gpu.name,
        ranks=result.tensor_parallel_size,
        note=result.start_problem or result.problem,
    )


def _kv_cache_range(result: RehearsedMemory, gpu: Gpu) -> tuple[int, int] | None:
    if not gpu.unified:
        return None
    room, (least, most) = result.kv_cache_bytes + result.non_torch_bytes, UNIFIED_NON_TORCH_BYTES
    return room - most, room - least


def budget_figures(
    budget: Budget, reserve: ProfileReserve | None = None, table: CostTable | None = None
) -> EncoderBudget:
    """Return vLLM's MultiModalBudget for reports, with the reserve and residency by `table`."""
    resident = resident_items(table, budget) if table else ()
    return EncoderBudget.from_value(
        budget,
        profiled_tokens=reserve.profiled_tokens if reserve else None,
        worst_step_tokens=reserve.worst_step_tokens if reserve else None,
        resident_items={r.modality: r.items for r in resident},
    )


def rehearsed_adequacy(result: RehearsedMemory, budget: Budget) -> ProfileReserve:
    """Return the reserve in tokens: the profile against the largest step that is admitted."""
    unprofiled = replace(budget, profiled_modality=None)
    worst = compute_reserve(unprofiled, budget.max_items_per_prompt).worst_step_tokens
    if not budget.max_tokens_per_item:  # Embeddings alone may fill the budget.
        worst = budget.encoder_budget_tokens
    return ProfileReserve(result.encoder_tokens, worst)


def rehearsal_document(
    result: RehearsedMemory, model: ResolvedModel, gpu: Gpu, config: Path | None
) -> Rehearsal:
    """Return the document of one rehearsal."""
    budget = result.budget
    return Rehearsal.from_value(
        result,
        mmcalib=__version__,
        model=model.id,
        source=model.source,
        config="" if config is None else str(config),
        gpu=gpu.name,
        capability=gpu.compute_capability,
        starts=result.starts,
        memory=memory_figures(result, gpu),
        budget=budget_figures(budget, rehearsed_adequacy(result, budget)) if budget else None,
        max_model_len=budget.max_model_len if budget else None,
        assumptions=[*result.assumptions, *model.notes],
        seconds=round(result.seconds, 2),
    )


# Kernels, CUDA graphs, buffers, language model, sampler: rehearsals of bundled models, rounded up.
ALLOWANCE_BYTES: Final = 3 << 29


def memory_by_formula(
    gpu: Gpu,
    started: Started | None,
    budget: Budget,
    engine_args: dict[str, Any],
    model_path: str,
    problem: str,
) -> Memory:
    """Estimate from the engine's start and the encoder's widths; without a start, only note why."""
    note = f"not rehearsed: {problem}"
    peak = estimate_bytes(budget, model_path)
    if started is None or peak is None:
        return Memory(gpu=gpu.name, note=note)
    weights = started.figures.weights_full_bytes
    share = engine_args.get("gpu_memory_utilization", GPU_MEMORY_UTILIZATION)
    requested = int(share * gpu.total_bytes)
    kv_cache_bytes = requested - weights - peak - ALLOWANCE_BYTES
    per_token = started.figures.kv_full_bytes_per_token
    return Memory(
        total_bytes=gpu.total_bytes,
        requested_bytes=requested,
        weights_bytes=weights,
        buffers_bytes=ALLOWANCE_BYTES,
        phases={"encoder": peak},
        activation_peak_bytes=peak,
        kv_cache_bytes=kv_cache_bytes,
        kv_cache_tokens=kv_cache_bytes // per_token if kv_cache_bytes > 0 else None,
        kv_bytes_per_token=per_token,
        label="computed",
        labels={"buffers_bytes": "assumed", "total_bytes": "assumed"},
        gpu=gpu.name,
        note=f"by formula, {note}",
    )
