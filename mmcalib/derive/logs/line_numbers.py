"""The line of its source from which vLLM logs a message, by release: what a log without a version
is known by. The files are those that a log names, without folders.
"""

from __future__ import annotations

from typing import Final

# The order of every row below; two releases share their lines.
RELEASES: Final[tuple[tuple[str, ...], ...]] = (
    ("0.23.0",),
    ("0.24.0",),
    ("0.25.0", "0.25.1"),
    ("0.26.0",),
    ("0.27.0", "0.27.1"),
    ("0.28.0",),
    ("0.29.0",),
    ("0.30.0",),
    ("0.31.0",),
    ("0.32.0",),
    ("0.33.0",),
)
# Read in the wheels of these releases, as tests/derive/logs/formats.jsonl has them (it is written
# anew by `python -m tests.derive.vllm_formats`), and held to it by tests.
LINES: Final[dict[str, dict[str, tuple[int | None, ...]]]] = {
    "gpu_worker.py": {
        "Available KV cache memory": (480, 508, 538, 560, 563, 578, 625, 640, 692, 759, 772),
        "profiling is enabled (": (495, 523, 553, 575, 578, 593, 640, 655, 707, 774, 787),
        "CUDA graph pool memory": (639, 667, 771, 793, 726, 741, 797, 825, 892, 971, 1003),
        "for consumed memory": (None, None, None, None, 789, 804, 860, 888, 955, 1034, 1066),
        "by kv_cache_memory_bytes": (401, 429, 459, 479, 491, 506, 544, 559, 603, 669, 676),
        "Using V2 Model Runner": (303, 331, 360, 378, 385, 396, 429, 441, 479, 518, 513),
    },
    "gpu_model_runner.py": {
        "Starting to load": (5092, 5160, 5209, 5250, 5308, 5419, 5379, 5317, 5255, 5039, 4978),
        "Model loading took": (5187, 5255, 5306, 5347, 5405, 5515, 5471, 5416, 5354, 5149, 5088),
        "Encoder cache will be": (6200, 6271, 6322, 6396, 6465, 6590, 6546, 6496, 6441, 6165, 6104),
        "Estimated CUDA graph": (6517, 6588, 6639, 6737, 6806, 6941, 6894, 6822, 6747, 6474, 6409),
        "Graph capturing": (6585, 6656, 6707, 6844, 6913, 7048, 7001, 6929, 6854, 6581, 6516),
    },
    "model_runner.py": {
        "Model loading took": (319, 302, 302, 305, 329, 380, 404, 428, 407, 424, 428),
        "Graph capturing": (701, 726, 722, 747, 791, 906, 960, 1066, 1087, 1127, 1163),
    },
    "encoder_runner.py": {
        "Encoder cache will be": (None, None, None, None, 80, 120, 131, 131, 131, 131, 131),
    },
    "kv_cache_utils.py": {
        "KV cache size:": (1744, 2146, 2146, 2177, 2235, 1869, 2032, 2395, 2464, 2327, 1147),
    },
    "core.py": {
        "LLM engine (v": (113, 114, 114, 116, 121, 122, 123, 123, 129, 133, 139),
    },
    "scheduler.py": {
        "Chunked prefill is enabled": (239, 252, 252, 252, 242, 242, 277, 288, 308, 307, 310),
    },
    "model.py": {
        "Using max model len": (1745, 1725, 1776, 1788, 1883, 1965, 2021, 2030, 2109, 2152, 2170),
    },
}


def releases_at(place: str | None, line: int | None, text: str) -> frozenset[str] | None:
    """The releases that log such a message from there, none of them where it is another's line;
    None where the message is not one of these.
    """
    if place is None or line is None:
        return None
    for mark, lines in LINES.get(place, {}).items():
        if mark in text:
            found = zip(RELEASES, lines, strict=True)
            return frozenset(one for names, at in found if at == line for one in names)
    return None
