"""What a plan stands on: the rehearsal, or a log beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmcalib.derive.anchor import Anchor
from mmcalib.derive.fix import Fix
from mmcalib.derive.fix_search import Found
from mmcalib.derive.goal import Goal
from mmcalib.derive.logs import read_log
from mmcalib.domain.rehearsed import EncoderStep, Rehearsed
from mmcalib.gpus.gpu import described
from mmcalib.workflows.memory.prediction import MemoryPrediction
from mmcalib.workflows.plan import from_log
from mmcalib.workflows.plan.bench import Bench
from mmcalib.workflows.plan.log_gpu import total_bytes
from mmcalib.workflows.plan.logged import logged
from mmcalib.workflows.plan.planned import best, tried
from mmcalib.workflows.plan.standing import Standing, standing
from tests.workflows.rehearsals import GIB, rehearsed

GPU = described("22GiB", "8.9")
BASE = rehearsed(budget=None)
EAGER = Fix("eager", "eager", {"enforce_eager": True}, "speed", "slower")
KV_LINE = (
    "(EngineCore pid=7) INFO 11-20 10:00:00 [gpu_worker.py:{line}] Available KV cache memory: "
    "{kv} GiB"
)


def stand(kv: str, line: int = 692) -> Standing:
    return standing(read_log([KV_LINE.format(line=line, kv=kv)]), BASE, GPU, None)


def test_a_log_beyond_the_tolerance_decides_and_one_within_does_not() -> None:
    far = stand("9.0")
    assert far.planned_from == "log"
    assert "the rehearsal has 1.50 GiB more KV cache than it states" in far.reason
    near = stand("10.4")
    assert (near.planned_from, near.anchor) == ("rehearsal", None)
    assert "its KV cache is the log's within 0.12 GiB" in near.reason


def test_a_log_without_a_kv_cache_or_of_another_gpu_decides_nothing() -> None:
    weights = read_log(["Model loading took 6.0 GiB memory and 2.0 seconds"])
    none = standing(weights, BASE, GPU, None)
    assert (none.anchor, [part.name for part in none.parts]) == (None, ["weights"])
    assert "states no KV cache" in none.reason
    kv = read_log(["Available KV cache memory: 60.0 GiB"])
    other = standing(kv, BASE, GPU, 79 * GIB)
    assert other.anchor is None
    assert "the log is of a GPU with 79.00 GiB" in other.reason


def test_every_figure_says_what_it_stands_on() -> None:
    far = stand("9.0")
    own = far.memory(BASE, GPU)
    assert (own.kv_cache_bytes, own.labels["kv_cache_bytes"]) == (9 * GIB, "measured")
    assert own.labels["kv_cache_tokens"] == "projected"
    told = read_log([KV_LINE.format(line=692, kv="9.0"), "GPU KV cache size: 262,144 tokens"])
    tokens = standing(told, BASE, GPU, None).memory(BASE, GPU)
    assert (tokens.kv_cache_tokens, tokens.labels["kv_cache_tokens"]) == (262_144, "measured")
    assert "non_torch_bytes" not in own.labels
    # The log does not itemise them, and what is rehearsed does not add up to its KV cache.
    assert (own.activation_peak_bytes, own.weights_bytes, own.cudagraph_bytes) == (None,) * 3
    more = far.memory(replace(BASE, kv_cache_bytes=11 * GIB), GPU)
    assert (more.kv_cache_bytes, more.labels["kv_cache_bytes"]) == (19 * GIB // 2, "projected")
    plain = Standing().memory(BASE, GPU)
    assert (plain.kv_cache_bytes, plain.labels["kv_cache_bytes"]) == (21 * GIB // 2, "computed")
    assert plain.activation_peak_bytes == 2 * GIB


@dataclass
class Eager:
    """Half a GiB more without graphs."""

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> Rehearsed:
        more = GIB // 2 if engine_args.get("enforce_eager") else 0
        return replace(
            BASE,
            kv_cache_bytes=BASE.kv_cache_bytes + more,
            kv_cache_tokens=305_832 + more // 36_864,
        )


def test_fixes_are_judged_by_the_log_and_what_they_were_rehearsed_to_change() -> None:
    """The rehearsal alone would have the goal reached already."""
    goal = Goal("kv_tokens", 270_000)
    with MemoryPrediction(GPU, Eager()) as prediction:
        alone = Bench(prediction, {"model": "/m"}, goal)
        assert alone.outcome(()).reached
        bench = replace(alone, standing=stand("9.0"))
        assert not bench.outcome(()).reached
        assert bench.outcome(()).lacking_bytes > 0
        assert bench.outcome((EAGER,)).reached
        fix = tried(EAGER, bench, GPU)
        assert (fix.kv_cache_bytes, fix.label) == (19 * GIB // 2, "projected")
        assert fix.reaches
        proposed = best(Found({}, (EAGER,), reached=True, proven=True), bench, GPU)
        assert proposed is not None
        assert proposed.memory.kv_cache_bytes == 19 * GIB // 2
        assert proposed.memory.labels["kv_cache_tokens"] == "projected"


def written(folder: Path, *lines: str) -> from_log.ServerLog:
    (folder / "server.log").write_text("\n".join(lines))
    return from_log.read(folder / "server.log")


def test_what_the_engine_took_by_default_is_rehearsed_as_it_was(tmp_path: Path) -> None:
    """Defaults differ between releases: 0.9 had 2,048 batched tokens where 0.32 has 8,192."""
    found = written(
        tmp_path,
        "non-default args: {'model': 'm', 'max_model_len': 2048}",
        "Using max model len 4096",
        "Chunked prefill is enabled with max_num_batched_tokens=2048.",
    )
    assert found.engine_args["max_model_len"] == 2048
    assert found.engine_args["max_num_batched_tokens"] == 2048
    assert found.effective == ("max_num_batched_tokens",)
    notes = logged(found, BASE, Standing()).notes
    assert "as the log's engine had it by default: max_num_batched_tokens=2048" in notes


def test_the_release_is_named_with_how_it_is_known_and_warned_of(tmp_path: Path) -> None:
    older = written(tmp_path, KV_LINE.format(line=692, kv="9.0"))
    said = logged(older, BASE, standing(older.log, BASE, GPU, total_bytes(older.log)))
    assert said.release is not None
    assert (said.release.versions, said.release.known_by) == (["0.31.0"], "lines")
    assert (
        "the log is of vLLM 0.31.0 by the lines of source it names (gpu_worker.py:692); the "
        "installed vLLM 0.32.0 is what was rehearsed: where they part it may be the releases that "
        "do"
    ) in said.notes
    assert said.planned_from == "log"
    assert [(part.name, part.apart) for part in said.parts] == [("KV cache", True)]
    same = written(tmp_path, KV_LINE.format(line=759, kv="9.0"))
    assert not any("installed" in note for note in logged(same, BASE, Standing()).notes)


def test_a_log_that_does_not_close_is_said_to_be_mixed(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        "Available KV cache memory: 40.0 GiB",
        "Free memory on device (78.84/79.25 GiB) on startup. Desired GPU memory utilization is "
        "(0.92, 72.91 GiB). Actual usage is 15.26 GiB for consumed memory (weights + non-torch), "
        "1.44 GiB for peak activation, and 0.23 GiB for CUDAGraph memory.",
    )
    said = logged(found, BASE, Standing())
    assert [one.closes for one in said.sums] == [False]
    assert any("do not close" in note for note in said.notes)


def test_an_anchor_needs_no_budget() -> None:
    found = Anchor(read_log(["Available KV cache memory: 9.0 GiB"]), BASE).moved(BASE)
    assert found.kv_cache_tokens is not None
