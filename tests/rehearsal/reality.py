"""Run the same modules twice, with real tensors and on the imaginary device, and print the peaks.

Encoders and language models at their true widths, cut to two layers, run on the CPU with real
tensors under torch's allocator events, and on the imaginary device without any. What is compared
is the bytes that were asked for: the CPU's allocator does not round as CUDA's does. Once more, the
real run's requests are handed to the replay of CUDA's allocator, and then its blocks are compared.
"""

import json
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2_5_VLConfig, WhisperConfig
from transformers.initialization import no_init_weights
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as qwen
from transformers.models.whisper import modeling_whisper as whisper

from mmcalib.child.rehearsal.allocator import CachingAllocator
from mmcalib.child.rehearsal.device import ImaginaryGpu
from mmcalib.child.rehearsal.ledger import Ledger
from mmcalib.models.catalogue import find_model
from mmcalib.models.cut import cut_depth
from mmcalib.models.gpus import find_gpu
from tests.builders import some

LAYERS = 2
QWEN, WHISPER = "Qwen/Qwen2.5-VL-3B-Instruct", "openai/whisper-large-v3"
# A part of a model, its attention, and a size in the part's own unit: patches (frames, rows,
# columns), tokens (sequences, length), clips of 30 s.
Case = tuple[str, str, tuple[int, ...]]
CASES: tuple[Case, ...] = (
    *(("vision", "sdpa", (1, 32, 48)), ("vision", "sdpa", (1, 24, 32))),
    *(("vision", "eager", (1, 32, 48)), ("language", "sdpa", (1, 512))),
    *(("language", "eager", (2, 192)), ("audio", "sdpa", (1,))),
    *(("audio", "sdpa", (2,)), ("audio", "eager", (2,))),
)
# Model, class of its config, section of that, class of the part.
PARTS: dict[str, tuple[str, Any, str, Any]] = {
    "vision": (
        *(QWEN, Qwen2_5_VLConfig, "vision_config"),
        qwen.Qwen2_5_VisionTransformerPretrainedModel,
    ),
    "language": (QWEN, Qwen2_5_VLConfig, "text_config", qwen.Qwen2_5_VLTextModel),
    "audio": (WHISPER, WhisperConfig, "", whisper.WhisperEncoder),
}
# Address and bytes; these are below zero where it is given back.
Event = tuple[int, int]


class Peaks(NamedTuple):
    """Bytes of the model when it stands, and the most that running it held above them."""

    weights_bytes: int
    run_bytes: int
    run_block_bytes: int


class Exact:
    """Give what is asked for, to the byte."""

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self._sizes: list[int] = []

    def allocate(self, nbytes: int) -> int:
        self._sizes.append(nbytes)
        self.allocated_bytes += nbytes
        return len(self._sizes)

    def free(self, address: int) -> None:
        self.allocated_bytes -= self._sizes[address - 1]


def real(case: Case) -> Peaks:
    """Run on the CPU, and read the events of torch's allocator there."""
    with torch.inference_mode():
        model, building = traced(lambda: build(case, "cpu"))
        inputs, preparing = traced(lambda: inputs_of(case, "cpu"))
        _, running = traced(lambda: model(**inputs))
    weights = sum(size for _, size in building)
    return Peaks(weights, peak(running), block_peak([*building, *preparing], running))


def imagined(case: Case) -> Peaks:
    """Run on the imaginary device, counted to the byte and then in blocks of CUDA's allocator."""
    (weights, run), (_, blocks) = (imagined_by(case, one) for one in (Exact(), CachingAllocator()))
    return Peaks(weights, run, blocks)


def imagined_by(case: Case, allocator: Any) -> tuple[int, int]:
    ledger = Ledger(find_gpu("H100-80G"))
    ledger.allocator = allocator
    with torch.inference_mode(), ImaginaryGpu(ledger):
        model = build(case, "cuda:0")
        weights = sum(one.nbytes for one in ledger.live.values())
        inputs = inputs_of(case, "cuda:0")
        with ledger.phase(case[0]) as phase:
            kept = model(**inputs)
        del kept
    return weights, phase.peak_bytes - phase.start_bytes


def build(case: Case, device: str) -> Any:
    """Make the part on the device, its weights allocated and left as they are."""
    part, attention, _ = case
    model_id, config_class, section, model_class = PARTS[part]
    config = config_class(**cut(some(find_model(model_id)).values("config")))
    config = getattr(config, section) if section else config
    config._attn_implementation = attention
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device), no_init_weights():
            return model_class(config).eval()
    finally:
        torch.set_default_dtype(before)


def cut(config: dict[str, Any]) -> dict[str, Any]:
    """Keep the first layers only; of the vision tower one windowed and one not."""
    found = cut_depth(config, LAYERS)
    found.pop("architectures", None)
    if "vision_config" in found:
        found["vision_config"]["fullatt_block_indexes"] = [LAYERS - 1]
    return found


def inputs_of(case: Case, device: str) -> dict[str, Any]:
    kind: dict[str, Any] = {"dtype": torch.bfloat16, "device": device}
    match case:
        case ("vision", _, (frames, rows, columns)):
            pixels = torch.zeros(frames * rows * columns, 1176, **kind)
            return {"hidden_states": pixels, "grid_thw": torch.tensor([case[2]], device=device)}
        case ("language", _, size):
            ids = torch.zeros(size, dtype=torch.long, device=device)
            return {"input_ids": ids, "use_cache": False}
    return {"input_features": torch.zeros(case[2][0], 128, 3000, **kind)}


def traced(run: Callable[[], Any]) -> tuple[Any, list[Event]]:
    """Return the result, and every request to the CPU's allocator in their order."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        result = run()
    found = []
    waiting = [(e, 0) for e in trace.profiler.kineto_results.experimental_event_tree()]
    while waiting:
        event, within = waiting.pop()
        if event.name == "aten::mkldnn_convolution":
            within = event.start_time_ns
        waiting += [(child, within) for child in event.children]
        if event.name == "[memory]":
            fields = event.extra_fields
            found.append((event.start_time_ns, within, fields.ptr, fields.alloc_size))
    # On some CPUs oneDNN reorders input and weights within a convolution, which no GPU does: what
    # one takes and gives back is left out.
    taken: dict[tuple[int, int], int] = {}
    dropped: set[int] = set()
    for number, (_, within, address, size) in enumerate(sorted(found)):
        if within and size > 0:
            taken[within, address] = number
        elif within and (within, address) in taken:
            dropped |= {number, taken.pop((within, address))}
    kept = [one for number, one in enumerate(sorted(found)) if number not in dropped]
    return result, [(address, size) for _, _, address, size in kept]


def peak(events: list[Event]) -> int:
    """Return the most bytes that were held at once."""
    return max(accumulate(size for _, size in events))


def block_peak(before: list[Event], events: list[Event]) -> int:
    """Replay the requests on a GPU, and return the peak above what those before them hold."""
    allocator = CachingAllocator()
    blocks: dict[int, int] = {}
    for position, (address, size) in enumerate([*before, *events]):
        if position == len(before):
            held = allocator.allocated_bytes
            allocator.reset_peak()
        if size > 0:
            blocks[address] = allocator.allocate(size)
        else:
            allocator.free(blocks.pop(address))
    return allocator.allocated_peak_bytes - held


if __name__ == "__main__":
    # A build without CUDA refuses its name before anything is dispatched.
    torch.cuda._lazy_init = lambda: None
    torch.manual_seed(0)
    print(json.dumps([[case, real(case)._asdict(), imagined(case)._asdict()] for case in CASES]))
