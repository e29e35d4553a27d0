"""A plan from a log: tried and proposed settings, judged as `run` and `validate` judge them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from mmcalib.domain.memory import RehearsedMemory
from mmcalib.domain.shapes import Modality
from mmcalib.errors import ModelError, UsageError, VllmRefused
from mmcalib.logs.starts import Failure, OutOfMemory, Phase, StartupLog, last_failed, read_starts
from mmcalib.models import gpus
from mmcalib.models.gpus import describe_gpu
from mmcalib.prediction.rehearse import MemoryPrediction, Predicted
from mmcalib.prediction.worst_steps import find_shortfall
from mmcalib.progress import Silent
from mmcalib.releases.constants import CONTEXT_BYTES, VLLM_SLACK_BYTES
from mmcalib.remedies.log import stated_remedies
from mmcalib.remedies.memory import Goal, Remedy, SearchResult, parse_kept, set_value
from mmcalib.workflows.plan import from_log, plan
from mmcalib.workflows.plan.plan import Judged, Trials, observe_oom, search, without_trap_hints
from tests.builders import some
from tests.limits.costed import AREA
from tests.workflows.memory.test_reserved import reserved_check
from tests.workflows.rehearsals import BUDGET, GIB, deepstack, limits, peaks, rehearsed

GPU = gpus.find_gpu("H100-80G")
L4 = describe_gpu("22GiB", "8.9")
ROOMY = {"model": "/m", "max_num_seqs": 256, "max_num_batched_tokens": 16_384}
FOUR = {**ROOMY, "max_num_seqs": 4}


@dataclass
class DeepStack:
    """Qwen3-VL-8B, under-reserved at four sequences; else it has `reserved_tokens` of KV cache."""

    steps: bool = True
    reserved_tokens: int = 305_832
    beside_bytes: int = 0

    def rehearse(self, engine_args: Mapping[str, Any], steps: Any = ()) -> RehearsedMemory:
        if not self.steps and "limit_mm_per_prompt" in engine_args:
            raise VllmRefused("NotImplementedError: no kernel")
        seqs, batch = engine_args["max_num_seqs"], engine_args["max_num_batched_tokens"]
        left = 305_832 if (seqs, batch) == (4, 16_384) else self.reserved_tokens
        # Little stays free outside what vLLM takes.
        requested = 22 * GIB - (200 << 20)
        return deepstack(limits(batch, seqs), kv_cache_tokens=left, requested_bytes=requested)


def searched(at: Trials) -> SearchResult:
    return search(at, at.outcome(()), Silent())


def bench(args: Mapping[str, Any], goal: Goal | None = None, **how: Any) -> Trials:
    found = Trials(MemoryPrediction(GPU, DeepStack(**how)), args, goal or Goal())  # type: ignore[arg-type]
    found.rehearse(())
    return found


def judge(at: Trials, *remedies: Remedy) -> Judged:
    return some(at.judge(remedies, at.rehearse(remedies)))


def test_a_configuration_is_judged_as_run_and_validate_do() -> None:
    at = bench(FOUR)
    found = judge(at)
    assert found.check.status == "fail"
    assert "under-reserved by 0.46 GiB: the language model's step" in found.check.detail
    after = at.rehearse(())
    same = Predicted(GPU, None, after, steps={"image": after})
    assert found.shortfall == find_shortfall(found.configuration, after, same.steps)
    theirs = reserved_check(same, found.configuration)
    assert found.check.detail == theirs.detail
    assert judge(bench(ROOMY)).check.status == "pass"


def test_a_goal_that_is_reached_already_is_not_where_it_is_under_reserved() -> None:
    """It would start, and may run out of memory under load: a setting that holds is proposed."""
    at = bench(FOUR)
    found = searched(at)
    assert found.outcome.reached
    (remedy,) = found.best
    assert remedy.changes == {"max_num_seqs": 51}
    assert remedy.cost == "nothing"
    assert judge(at, remedy).check.status == "pass"
    assert bench(ROOMY).outcome(()).reached


def test_what_no_setting_makes_room_for_is_said_and_is_no_success() -> None:
    """The KV cache has less than the goal after each remedy."""
    at = bench(FOUR, Goal("kv_tokens", 300_000), reserved_tokens=200_000)
    assert not searched(at).outcome.reached


def test_where_steps_cannot_be_rehearsed_it_says_what_it_does_not_know() -> None:
    at = bench(ROOMY, steps=False)
    found = judge(at)
    assert (found.check.status, found.shortfall) == ("warn", None)
    why = "only tokens were compared, because rehearsals on H100-80G ended early"
    assert why in found.check.detail
    assert found.check.remedy.startswith("mmcalib rehearse --model /m --gpu H100-80G --verbose")
    assert at.outcome(()).reached


@dataclass
class Qwen7B:
    """Qwen2.5-VL-7B rehearsed on an L4, profiled with the largest, hinted or capped image."""

    def rehearse(self, engine_args: Mapping[str, Any], steps: Any = ()) -> RehearsedMemory:
        size = (engine_args.get("mm_processor_kwargs") or {}).get("images_kwargs", {}).get("size")
        item = min(16_384, size["longest_edge"] // 784) if size else 16_384
        limit = engine_args["limit_mm_per_prompt"]["image"]
        profiled = min(item, 324) if isinstance(limit, dict) and "width" in limit else item
        length = engine_args.get("max_model_len", 8_192)
        requested = round(engine_args.get("gpu_memory_utilization", 0.92) * 22 * GIB)
        encoder = profiled * 140_000
        peak = max(encoder, 300 << 20)
        kv_cache = requested - 16 * GIB - peak
        tokens = kv_cache // 57_344
        return rehearsed(
            budget=replace(
                BUDGET,
                max_tokens_per_item={"image": item},
                encoder_compute_budget=max(item, 2_048),
                encoder_cache_size=max(item, 2_048),
                max_model_len=length,
            ),
            weights_bytes=16 * GIB,
            buffers_bytes=0,
            non_torch_bytes=0,
            cudagraph_bytes=0,
            requested_bytes=requested,
            activation_peak_bytes=peak,
            phases=peaks(encoder, 300 << 20),
            encoder_tokens=profiled,
            kv_cache_bytes=kv_cache,
            kv_bytes_per_token=57_344,
            kv_cache_tokens=tokens if tokens >= length else None,
            max_concurrency=tokens / length if tokens >= length else None,
        )


HINTED: Mapping[str, Any] = {"count": 2, "width": 512, "height": 512}


def served(image: Any, goal: Goal | None = None, **args: Any) -> Trials:
    limits = {"limit_mm_per_prompt": {"image": image, "video": 0}}
    at = Trials(MemoryPrediction(L4, Qwen7B()), {"model": "/m", **limits, **args}, goal or Goal())  # type: ignore[arg-type]
    at.rehearse(())
    return at


def test_a_hint_that_shrinks_the_profile_alone_is_dropped_and_that_has_a_price() -> None:
    at = served(HINTED, max_model_len=32_768)
    assert not judge(at).holds
    honest = without_trap_hints(at)
    (fix,) = honest.required
    assert fix.cost == "KV cache"
    assert honest.changes(()) == {"limit_mm_per_prompt": {"image": 2, "video": 0}}
    assert honest.outcome(()).reached
    plain = served(2)
    assert without_trap_hints(plain) is plain


def test_dropping_a_hint_is_combined_with_a_shorter_context_and_eight_bits() -> None:
    at = served(HINTED, Goal("concurrency", 16))
    at = replace(without_trap_hints(at), knobs=(AREA,))
    found = searched(at)
    assert found.outcome.reached
    changes = at.changes(found.best)
    assert changes["limit_mm_per_prompt"] == {"image": 2, "video": 0}
    assert judge(at, *found.best).holds
    best = some(plan.combine(found, at))
    assert {name for fix in best.fixes for name in fix.changes} == changes.keys()
    for fix in found.best:
        fewer = tuple(one for one in found.best if one != fix)
        assert not at.outcome(fewer).reached


OOM = OutOfMemory(round(1.08 * GIB), 22 * GIB, round(0.39 * GIB), round(20.91 * GIB), 0, 0)


def exhausted(at: Trials, *, phase: Phase | None = "serving: encoder") -> Trials:
    return replace(at, oom=observe_oom(at, StartupLog(failures=(Failure("", phase, OOM),))))


def test_a_server_that_ran_out_of_memory_needs_more_room_whatever_is_reserved() -> None:
    """The reserve alone would pass."""
    calm = served(2, gpu_memory_utilization=0.95)
    assert judge(calm).holds
    at = exhausted(calm)
    oom = some(at.oom)
    assert oom.outside_torch_bytes == 22 * GIB - round(0.39 * GIB) - round(20.91 * GIB)
    kv_cache = calm.rehearse(()).kv_cache_bytes
    assert oom.step_bytes == round(21.99 * GIB) - 16 * GIB - kv_cache
    assert (oom.step_modality, oom.step_items) == ("image", 2)
    assert oom.step_tokens == round(oom.step_bytes / 140_000)
    assert oom.step_limit_tokens == 16_384
    found = judge(at)
    assert not found.holds
    assert found.lacking_bytes == oom.lacking_bytes
    assert oom.lacking_bytes == round(1.08 * GIB) - round(0.39 * GIB) + VLLM_SLACK_BYTES
    (remedy,) = searched(at).best
    assert remedy.changes == {"gpu_memory_utilization": 0.91}
    assert remedy.cost == "KV cache"
    assert remedy.price.startswith("0.88 GiB less")
    assert judge(at, remedy).holds
    (same,) = at.reserve((set_value("gpu_memory_utilization", 0.93),))
    assert (same.changes, same.price) == (remedy.changes, remedy.price)
    fixed = exhausted(served(2, gpu_memory_utilization=0.95, kv_cache_memory_bytes=4 * GIB))
    (less,) = fixed.reserve(())
    assert less.changes == {"kv_cache_memory_bytes": 4 * GIB - oom.lacking_bytes}


def test_before_the_kv_cache_a_lower_utilization_makes_no_room() -> None:
    at = exhausted(served(2, gpu_memory_utilization=0.95), phase="profile: encoder")
    found = searched(replace(at, knobs=(AREA,)))
    assert found.outcome.reached
    assert "images_kwargs.size.longest_edge" in {fix.knob for fix in found.best}
    assert judge(at, *found.best).holds
    shared = Failure("", "profile: encoder", replace(OOM, others_bytes=2 * GIB))
    assert observe_oom(at, StartupLog(failures=(shared,))) is None


@dataclass
class SharedCap:
    """Its largest video is as large as the cap of images lets it be."""

    def rehearse(self, engine_args: Mapping[str, Any], steps: Any = ()) -> RehearsedMemory:
        kwargs = engine_args.get("mm_processor_kwargs") or {}
        video = 4_096 if "images_kwargs" in kwargs else 114_688
        items: dict[Modality, int] = {"image": 4_096 if kwargs else 16_384, "video": video}
        tokens = 300_000 if kwargs else 1_000
        return rehearsed(budget=replace(BUDGET, max_tokens_per_item=items), kv_cache_tokens=tokens)


def test_a_cap_of_images_that_turns_videos_away_is_passed_over() -> None:
    args = {"model": "/m", "limit_mm_per_prompt": {"image": 1, "video": 1}}
    with MemoryPrediction(GPU, SharedCap()) as prediction:  # type: ignore[arg-type]
        at = Trials(prediction, args, Goal("kv_tokens", 200_000))
        found = searched(replace(at, knobs=(AREA,)))
    assert not found.outcome.reached
    refused = [result.refusal for fixes, result in found.tried if fixes[-1].knob == AREA.name]
    assert refused[0] == "rejects video items"


RAN_OUT = "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of {} GiB of"


def written(folder: Path, *lines: str) -> from_log.ServerLog:
    (folder / "server.log").write_text("\n".join(lines))
    return from_log.read_server_log(folder / "server.log")


def test_what_the_engine_took_by_default_is_rehearsed_as_it_was(tmp_path: Path) -> None:
    """Defaults differ between releases: 0.9 had 2,048 batched tokens where 0.32 has 8,192."""
    found = written(
        tmp_path,
        "vLLM API server version 0.31.0",
        "non-default args: {'model': 'm', 'max_model_len': 2048, 'port': 1, 'seed': 3, "
        "'enable_prefix_caching': False, 'newer_argument': 1}",
        "Using max model len 4096",
        "Chunked prefill is enabled with max_num_batched_tokens=2048.",
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB",
    )
    known = ("model", "max_model_len", "max_num_batched_tokens", "seed", "enable_prefix_caching")
    args, ignored = found.engine_args(known)
    sizes = {"max_model_len": 2048, "max_num_batched_tokens": 2048}
    assert args == {**sizes, "enable_prefix_caching": False}
    assert list(from_log.notes_of(found.log, gpus.find_gpu("L4"), "0.32.0", ignored)) == [
        "the log is from vLLM 0.31.0; mmcalib runs vLLM 0.32.0",
        "the log is from a GPU with 8.00 GiB; mmcalib rehearsed L4",
        "defaults of the log's engine: max_num_batched_tokens=2048",
        "arguments of the log that are not rehearsed: newer_argument",
    ]
    fitted = StartupLog(engine_args={"max_model_len": -1}, max_model_len=9024)
    assert "max_model_len=9024" in "".join(from_log.notes_of(fitted, GPU, "0.32.0", ()))


def test_no_plan_exceeds_the_sequences_that_the_log_allows(tmp_path: Path) -> None:
    found = written(tmp_path, "max_num_seqs (256) exceeds available Mamba cache blocks (108).")
    (fix,) = stated_remedies(found.log)
    assert fix.changes == {"max_num_seqs": 108}
    assert stated_remedies(found.log, parse_kept(["max_num_seqs"])) == ()
    at = Trials(MemoryPrediction(GPU, DeepStack()), ROOMY, Goal(), required=(fix,))  # type: ignore[arg-type]
    assert at.args(())["max_num_seqs"] == 108


WHOLE = "KV cache is needed, which is larger than the available"
ONE = "ValueError: To serve at least one request with the models's max seq len (65536), "


def test_what_an_error_that_is_cut_short_lacks_is_unknown(tmp_path: Path) -> None:
    cut, whole = ONE, f"{ONE}9.0 GiB {WHOLE}"
    for error, missing in ((cut, None), (whole, 9 * GIB - round(1.2 * GIB))):
        found = written(tmp_path, "Available KV cache memory: 1.20 GiB", error)
        assert found.answer().missing_bytes == missing


@pytest.mark.parametrize(("said", "share"), [("", None), ("'gpu_memory_utilization': 0.5", 0.5)])
def test_a_utilization_that_no_line_states_is_no_figure_of_the_log(
    said: str, share: float | None, tmp_path: Path
) -> None:
    args = f"non-default args: {{'model': 'm', {said}}}"
    answer = written(tmp_path, "API server version 0.20.0", args, RAN_OUT.format("8.00")).answer()
    assert answer.figures.get("gpu_memory_utilization") == share
    assert answer.figures.get("requested_bytes") == (share and 4 * GIB)
    assumed = [] if share else ["assumed: --gpu-memory-utilization 0.92"]
    assert [note.split(",")[0] for note in answer.notes] == assumed


READY = "Application startup complete."
REFUSED = f"{READY}\nERROR 10-25 13:20:01 ValueError: At most 1 image(s) may be"


def test_a_start_without_a_failure_says_how_it_ends(tmp_path: Path) -> None:
    loading = "Starting to load model org/m..."
    for more, said in (
        (READY, "this start did not fail; if a request did: --log FILE"),
        (REFUSED, "this start did not fail; a request did: ValueError: At most 1 image(s)"),
        ("Model loading took 7.1 GiB", "the log ends during startup (profile), without an error"),
        ("ValueError: No available memory for the cache blocks.", ""),
    ):
        ending = written(tmp_path, loading, more).answer().ending
        assert ending.startswith(said)
        assert bool(ending) == bool(said)


def test_a_remedy_that_would_not_help_is_not_offered(tmp_path: Path) -> None:
    profiled, known = "Encoder cache will be initialized with 4 video items", "LLM engine (v0.20.0)"
    oom = RAN_OUT.format("8.00") + " which 0.50 GiB is free. Of the allocated memory 7.60 GiB is"
    for said, frame, fixes in (
        # Weights take vLLM's share; a KV cache without video is larger; an unknown release's share.
        (f"{known}\nModel loading took 7.5 GiB", "_dummy_run", []),
        (f"{known}\nGPU KV cache size: 9 tokens", "_dummy_sampler_run", ["gpu_memory_utilization"]),
        ("GPU KV cache size: 9 tokens", "_dummy_sampler_run", []),
    ):
        found = written(tmp_path, said, profiled, f'File "w.py", line 9, in {frame}', oom)
        assert [name for fix in found.answer().fixes for name in fix.changes] == fixes
    # Half of what 2 GiB of weights leave in vLLM's 7.36 GiB is for the KV cache.
    batch = "Chunked prefill is enabled with max_num_batched_tokens=8192."
    loaded = known, batch, "Model loading took 2 GiB", f"{oom} allocated by PyTorch"
    fix, *_ = written(tmp_path, *loaded).answer().fixes
    assert fix.changes == {"max_num_batched_tokens": 3072}


def test_no_context_is_offered_below_the_largest_item_with_its_answer(tmp_path: Path) -> None:
    args = "non-default args: {'max_num_batched_tokens': 2048, 'gpu_memory_utilization': 0.92}"
    said = args, "Available KV cache memory: 1.2 GiB", f"{ONE}9.0 GiB {WHOLE}"
    budget = "Encoder cache will be initialized with a budget of 16384 tokens, and profiled with 1"
    for modality, contexts, least in (
        ("image", [], "a card with about 23.33 GiB for 17,408 tokens of context"),
        ("video", [{"max_model_len": 8192}], "a shorter --max-model-len"),
    ):
        answer = written(tmp_path, *said, f"{budget} {modality} items").answer(gpus.find_gpu("L4"))
        assert [one.changes for one in answer.fixes if "max_model_len" in one.changes] == contexts
        assert answer.least.startswith(least)


@pytest.mark.parametrize(
    ("gib", "error", "changed"),
    [
        (6, f"{READY}\n{RAN_OUT.format('8.00')} which 0.50 GiB is free", 5482),
        (2, f"{ONE}2.50 GiB {WHOLE}", 2570),
    ],
)
def test_a_kv_cache_of_given_bytes_is_changed_by_them(gib, error, changed, tmp_path: Path) -> None:
    """vLLM takes no utilization for it: v1/worker/gpu_worker.py:650 of 0.32."""
    said = f"reserved {gib}.00 GiB memory for KV Cache as specified by kv_cache_memory_bytes"
    args = f"non-default args: {{'kv_cache_memory_bytes': {gib * GIB}}}"
    fix, *_ = written(tmp_path, "LLM engine (v0.20.0)", args, said, error).answer().fixes
    mib = {name: value >> 20 for name, value in fix.changes.items()}
    assert mib == {"kv_cache_memory_bytes": changed}


TWO_SERVERS = (
    "web-1  | non-default args: {'model': 'org/a', 'port': 8000}",
    "web-2  | non-default args: {'model': 'org/b', 'port': 8001}",
    "web-1  | ValueError: No available memory for the cache blocks.",
    "web-2  | Application startup complete.",
)


def test_of_several_servers_the_last_that_failed_is_taken_and_others_are_named(
    tmp_path: Path,
) -> None:
    found = written(tmp_path, *TWO_SERVERS)
    log = tmp_path / "server.log"
    assert found.log.model == "org/a"
    answer = found.answer()
    assert answer.start == "line 1: org/a, port 8000, failed (kv cache)"
    assert answer.others == ("line 2: org/b, port 8001, started",)
    for picked in (Path(f"{log}:2"), None), (log, "org/b"), (Path(f"{log}:2"), "org/a"):
        assert from_log.read_server_log(*picked).log.model == "org/b"
    assert from_log.read_server_log(log, "another").log.model == "org/a"
    rank = "(EngineCore_DP{0} pid={0}) Available KV cache memory: {1} GiB"
    figures = written(tmp_path, rank.format(0, 9.5), rank.format(1, 3)).answer().figures
    assert (figures["kv_cache_bytes"], figures["other_kv_cache_bytes"]) == (3 * GIB, 9.5 * GIB)
    (tmp_path / "late.log").write_text("\n" + TWO_SERVERS[0])
    with pytest.raises(UsageError, match="no server starts by line 1"):
        from_log.read_server_log(tmp_path / "late.log:1")


def test_a_log_of_another_model_ends_the_plan_and_smaller_differences_are_named() -> None:
    log = StartupLog(weights_bytes=14 * GIB, kv_cache_bytes=4 * GIB)
    assert from_log.compare_log(log, 14 * GIB, 4 * GIB, ()) == []
    weights, cache = from_log.compare_log(log, 15 * GIB, 3 * GIB, ())
    assert weights.startswith("the log's weights are 14.00 GiB, and this model's 15.00 GiB")
    assert cache == "the log's KV cache is 4.00 GiB, rehearsed 3.00 GiB: another GPU or release"
    # A log that does not state its GPU's memory may be of a smaller one.
    for total, size, beside in ((22, 4.5, 6), (None, 4.5, 0), (None, 10, 0.5), (22, 12, 0)):
        said = StartupLog(total_bytes=total and total * GIB, kv_cache_bytes=round(size * GIB))
        plan.measure_log(said, host := DeepStack(), FOUR, {})  # type: ignore[arg-type]
        assert host.beside_bytes == beside * GIB
    with pytest.raises(ModelError, match="a quantized build") as caught:
        from_log.compare_log(log, 51 * GIB, 0, ["org/m-FP8"])
    assert caught.value.hint == "--model with it: org/m-FP8"


def test_the_memory_that_other_processes_hold_is_read_from_the_log(tmp_path: Path) -> None:
    """A server that starts alone on an L4 finds all of it free but for its context."""
    message = "ValueError: Free memory on device cuda:0 ({free}/22.04 GiB) on startup is less than"
    l4 = gpus.find_gpu("L4")
    for free, expected in ((17.06, round(17.06 * GIB) + CONTEXT_BYTES), (21.7, None)):
        log = written(tmp_path, message.format(free=free) + " desired GPU memory utilization").log
        assert from_log.with_memory_of_log(l4, log).free_bytes == expected
        given = gpus.with_free_memory(l4, "9GiB")
        assert from_log.with_memory_of_log(given, log) == given
    # Of two GPUs: 0.84 GiB are the context and NCCL, not another process.
    taken = CONTEXT_BYTES + l4.nccl_bytes
    for free, expected in ((17.06, round(17.06 * GIB) + taken), (21.2, None)):
        log = written(tmp_path, message.format(free=free) + " desired GPU memory utilization").log
        several = replace(log, engine_args={"tensor_parallel_size": 2})
        assert from_log.with_memory_of_log(l4, several).free_bytes == expected
    other = gpus.find_gpu("H100-80G")
    assert from_log.with_memory_of_log(other, log) == other
    message += " desired GPU memory utilization (0.92, 20.28 GiB)"
    for free, flags, least in (
        (10.2, ["--gpu-memory-utilization 0.46"], ""),
        (0.41, [], "another process holds 21.63 GiB of that GPU: stop it"),
    ):
        answer = written(tmp_path, message.format(free=free)).answer()
        assert ([fix.flags for fix in answer.fixes], answer.least) == (flags, least)


@pytest.mark.parametrize(
    ("total", "first"),
    [(f"23.{cents}", "RTX-4090, RTX-3090, ") for cents in (52, 53, 55, 63, 64, 65)]
    + [("22.03", "L4, A10G, "), ("22.19", "L4, A10G, "), ("14.75", "T4, ")],
)
def test_a_gpu_is_known_by_the_total_of_any_driver_the_common_ones_first(
    total: str, first: str
) -> None:
    log = last_failed(read_starts([RAN_OUT.format(total)]))
    with pytest.raises(UsageError, match=f"{total}GiB: {first}") as caught:
        from_log.gpu_of_log(log)
    assert caught.value.hint.startswith(f"--gpu {first.split(',')[0]}, ")
    counted = from_log.with_memory_of_log(gpus.find_gpu(first.split(",")[0]), log).total_bytes
    assert abs(counted - float(total) * GIB) <= GIB / 100


def test_the_gpu_of_an_environment_that_is_pasted_with_a_log_is_its_gpu() -> None:
    pasted = ["GPU models and configuration:", "GPU 0: NVIDIA A10G", "GPU 1: NVIDIA A10G"]
    # By its name, and of the three of its size.
    for line in ("Starting to load model org/m...", RAN_OUT.format("22.03")):
        (log,) = read_starts([*pasted, line])
        assert from_log.gpu_of_log(log).name == "A10G"
    (card,) = read_starts(["GPU 0: Tesla T4 (UUID: GPU-8b1)", RAN_OUT.format("14.75")])
    assert from_log.gpu_of_log(card).name == "T4"
