"""The imaginary GPU against real memory: the same modules run twice, their peaks compared.

    python benchmarks/rehearsal_reality.py [--json]

Encoders and language models at their true widths, cut to two layers, run on the CPU with real
tensors under torch's allocator events, and on the imaginary device without any. What is compared
is the bytes that were asked for: the CPU's allocator does not round as CUDA's does. Once more, the
real run's requests are handed to the replay of CUDA's allocator, and then its blocks are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from memory.traces import block_peak, peak, traced  # noqa: E402

from mmcalib.engine.environment import child_environment  # noqa: E402
from mmcalib.models.catalogue import find_model as find_geometry  # noqa: E402
from mmcalib.models.gpus import find_gpu as find_gpu  # noqa: E402

LAYERS = 2
QWEN, WHISPER = "Qwen/Qwen2.5-VL-3B-Instruct", "openai/whisper-large-v3"
IN_CHILD = "--in-child"


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a part of a model, its attention, and a size in that part's own unit."""

    part: str
    attention: str
    size: tuple[int, ...]


# Patches (frames, rows, columns), tokens (sequences, length), clips of 30 s.
CASES = (
    Case("vision", "sdpa", (1, 32, 48)),
    Case("vision", "sdpa", (1, 24, 32)),
    Case("vision", "eager", (1, 32, 48)),
    Case("language", "sdpa", (1, 512)),
    Case("language", "eager", (2, 192)),
    Case("audio", "sdpa", (1,)),
    Case("audio", "sdpa", (2,)),
    Case("audio", "eager", (2,)),
)


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes of the model when it stands, and the most that running it held above them."""

    weights_bytes: int
    run_bytes: int
    run_block_bytes: int


@dataclass(frozen=True, slots=True)
class Compared:
    case: Case
    real: Peaks
    imagined: Peaks


class Exact:
    """An allocator that gives what is asked for, to the byte."""

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self._sizes: list[int] = []

    def allocate(self, nbytes: int) -> int:
        self._sizes.append(nbytes)
        self.allocated_bytes += nbytes
        return len(self._sizes)

    def free(self, address: int) -> None:
        self.allocated_bytes -= self._sizes[address - 1]


def compare_all() -> Iterator[Compared]:
    """Every case, real and imagined, in this process: no part of vLLM is in it."""
    import torch

    # A build without CUDA refuses its name before anything is dispatched.
    torch.cuda._lazy_init = lambda: None
    torch.manual_seed(0)
    for case in CASES:
        yield Compared(case, real(case), imagined(case))


def real(case: Case) -> Peaks:
    """On the CPU, by the events of torch's allocator there."""
    import torch

    with torch.inference_mode():
        model, building = traced(lambda: _build(case, "cpu"))
        inputs, preparing = traced(lambda: _inputs(case, "cpu"))
        _, running = traced(lambda: model(**inputs))
    weights = sum(size for _, size in building)
    return Peaks(weights, peak(running), block_peak([*building, *preparing], running))


def imagined(case: Case) -> Peaks:
    """On the imaginary device, once counted to the byte and once in blocks of CUDA's allocator."""
    from mmcalib.child.rehearsal.allocator import CachingAllocator

    weights, run = _imagined(case, Exact())
    _, blocks = _imagined(case, CachingAllocator())
    return Peaks(weights, run, blocks)


def _imagined(case: Case, allocator: Any) -> tuple[int, int]:
    import torch

    from mmcalib.child.rehearsal.device import ImaginaryGpu
    from mmcalib.child.rehearsal.ledger import GpuMemory, Ledger

    machine = GpuMemory(find_gpu("H100-80G"))
    machine.allocator = allocator
    ledger = Ledger(machine)
    with torch.inference_mode(), ImaginaryGpu(ledger):
        model = _build(case, "cuda:0")
        weights = sum(one.nbytes for one in ledger.live.values())
        inputs = _inputs(case, "cuda:0")
        with ledger.phase(case.part) as phase:
            kept = model(**inputs)
        del kept
    return weights, phase.peak_bytes - phase.start_bytes


def _build(case: Case, device: str) -> Any:
    """The part of the model on the device, its weights allocated and left as they are."""
    import torch
    from transformers import Qwen2_5_VLConfig, WhisperConfig
    from transformers.initialization import no_init_weights
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as qwen
    from transformers.models.whisper import modeling_whisper as whisper

    parts: dict[str, tuple[str, Any, Callable[[Any], Any], Any]] = {
        "vision": (
            QWEN,
            Qwen2_5_VLConfig,
            lambda config: config.vision_config,
            qwen.Qwen2_5_VisionTransformerPretrainedModel,
        ),
        "language": (
            QWEN,
            Qwen2_5_VLConfig,
            lambda config: config.text_config,
            qwen.Qwen2_5_VLTextModel,
        ),
        "audio": (WHISPER, WhisperConfig, lambda config: config, whisper.WhisperEncoder),
    }
    model_id, config_class, section, model_class = parts[case.part]
    geometry = find_geometry(model_id)
    assert geometry is not None
    config = section(config_class(**_cut(geometry.values("config"))))
    config._attn_implementation = case.attention
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device), no_init_weights():
            return model_class(config).eval()
    finally:
        torch.set_default_dtype(before)


def _cut(config: dict[str, Any]) -> dict[str, Any]:
    """The first layers only; of the vision tower one windowed and one not."""
    cut = {key: value for key, value in config.items() if key != "architectures"}
    for key in ("num_hidden_layers", "encoder_layers", "decoder_layers"):
        if key in cut:
            cut[key] = LAYERS
    if "vision_config" in cut:
        cut["vision_config"] = {
            **cut["vision_config"],
            "depth": LAYERS,
            "fullatt_block_indexes": [LAYERS - 1],
        }
    return cut


def _inputs(case: Case, device: str) -> dict[str, Any]:
    import torch

    if case.part == "vision":
        frames, rows, columns = case.size
        pixels = torch.zeros(frames * rows * columns, 1176, dtype=torch.bfloat16, device=device)
        grid = torch.tensor([case.size], device=device)
        return {"hidden_states": pixels, "grid_thw": grid}
    if case.part == "language":
        ids = torch.zeros(case.size, dtype=torch.long, device=device)
        return {"input_ids": ids, "use_cache": False}
    (clips,) = case.size
    return {"input_features": torch.zeros(clips, 128, 3000, dtype=torch.bfloat16, device=device)}


def table(compared: list[Compared]) -> str:
    lines = [
        "| part | attention | size | weights, MiB | off | peak, MiB | off | in blocks, MiB | off |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for one in compared:
        cells = [one.case.part, one.case.attention, "×".join(map(str, one.case.size))]
        for name in ("weights_bytes", "run_bytes", "run_block_bytes"):
            found, truth = getattr(one.imagined, name), getattr(one.real, name)
            cells += [f"{truth / 2**20:.2f}", f"{found / truth - 1:+.3%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run_in_child() -> list[Compared]:
    """All cases in a process that can import transformers wherever the engine's child can."""
    done = subprocess.run(
        [sys.executable, __file__, IN_CHILD],
        env=child_environment(os.environ, offline=True),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return [
        Compared(Case(**one["case"]), Peaks(**one["real"]), Peaks(**one["imagined"]))
        for one in map(json.loads, done.stdout.splitlines())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object per case")
    parser.add_argument(IN_CHILD, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.in_child:
        for one in compare_all():
            print(json.dumps(asdict(one)), flush=True)
        return
    compared = run_in_child()
    if arguments.json:
        for one in compared:
            print(json.dumps(asdict(one)))
    else:
        print(table(compared))


if __name__ == "__main__":
    main()
