"""A hand-written configuration where proof and memory take it, without an engine."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mmcalib.checks import reserve
from mmcalib.checks.catalogue import MEMORY_RESERVE, SIZE_HINT
from mmcalib.checks.check import Check
from mmcalib.configs.opening import without_gpu_args
from mmcalib.configs.read import read_configuration
from mmcalib.decision.explore import BudgetSource
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.domain.shapes import Modality
from mmcalib.engine.host import EngineHost
from mmcalib.limits.policy import Policy
from mmcalib.limits.values import Count, ProfileReserve, token_adequacy
from mmcalib.models import gpus
from mmcalib.models.resolve import ResolvedModel
from mmcalib.prediction.rehearse import Predicted
from mmcalib.prediction.worst_steps import worst_step_configs
from mmcalib.progress import Silent
from mmcalib.workflows.judging import judge_memory
from mmcalib.workflows.validate.subject import ValidatedConfig, ValidateJob
from mmcalib.workflows.validate.validate import validate_with
from tests.workflows.fake_host import opened
from tests.workflows.memory.test_reserved import reserved_check
from tests.workflows.rehearsals import BUDGET, GIB, rehearsed

NOBODY = cast(EngineHost, None)
OPENED = opened({"image": None}, knobs=(), max_model_len=32_768)


def subject(**engine_args: Any) -> ValidatedConfig:
    counts: dict[Modality, Count] = {"image": Count(1, "", "given")}
    return ValidatedConfig(
        resolved=ResolvedModel("m", "/m", "local", ()),
        budgets=BudgetSource(NOBODY, OPENED, "/m", Policy()),
        progress=Silent(),
        engine_args=engine_args,
        counts=counts,
        budget=BUDGET,
        plain=BUDGET,
        default_budget=BUDGET,
        adequacy=token_adequacy(engine_args, BUDGET, counts),
    )


def test_the_worst_step_has_no_hint_and_is_profiled() -> None:
    hinted = {"image": {"count": 1, "width": 512}}
    found = subject(limit_mm_per_prompt=hinted, skip_mm_profiling=True, max_num_seqs=4)
    ((modality, args),) = worst_step_configs(found)
    assert modality == "image"
    assert args == {
        "limit_mm_per_prompt": {"image": 1},
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16_384,
    }


@pytest.mark.parametrize(("items", "side"), [(1, 3584), (4, 7168)])
def test_a_hint_grows_until_its_item_fills_the_step_if_larger_ones_are_rejected(
    items: int, side: int
) -> None:
    """Without it vLLM would profile an item that exceeds the encoder cache."""
    found = subject(limit_mm_per_prompt={"image": {"count": 1, "width": 3584, "height": 3584}})
    tokens = BUDGET.encoder_budget_tokens
    plain = replace(BUDGET, max_tokens_per_item={"image": tokens + 1})
    hinted = replace(BUDGET, max_tokens_per_item={"image": tokens // items})
    ((_, args),) = worst_step_configs(replace(found, plain=plain, budget=hinted))
    assert args["limit_mm_per_prompt"] == {"image": {"count": 1, "width": side, "height": side}}


def test_bytes_decide_and_keep_the_cures_of_the_tokens() -> None:
    hinted = subject(limit_mm_per_prompt={"image": {"count": 1, "width": 512}})
    hinted = replace(hinted, adequacy=ProfileReserve(324, 16_384))
    gpu = gpus.find_gpu("L4")
    worst: dict[Modality, RehearsedMemory] = {"image": rehearsed()}
    before = [
        Check(SIZE_HINT.of("image"), "fail", "a trap", "the cure"),
        Check(MEMORY_RESERVE, "fail", "in tokens", "the cure"),
    ]
    for reserves, statuses in ((GIB // 4, ("fail", "fail")), (2 * GIB, ("warn", "pass"))):
        config = rehearsed(activation_peak_bytes=reserves)
        check = reserved_check(Predicted(gpu, None, config, steps=worst), hinted)
        hint, reserved = judge_memory(before, [check], hinted, reserve.no_gpu(""))
        assert (hint.status, reserved.status) == statuses
        assert "rehearsed" in reserved.detail
        assert reserved.remedy == ("the cure" if reserved.status == "fail" else "")


def test_what_needs_a_gpu_is_left_out_without_one() -> None:
    args = {"tensor_parallel_size": 2, "max_num_seqs": 4}
    assert without_gpu_args(args, "cpu") == {"max_num_seqs": 4}
    assert without_gpu_args(args, "cuda") == args


def test_what_is_not_yaml_is_a_finding(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("model: [\n")
    written = read_configuration(config, ("--port", "1"), "m")
    job = ValidateJob(written, NOBODY, tmp_path, Silent(), gpu=gpus.find_gpu("L4"))
    found = validate_with(job)
    assert (found.verdict, found.model, found.gpu) == ("fail", "m", "L4")
    assert found.flags == ["--port", "1"]
    (check,) = found.checks
    assert check.detail.startswith("it is not YAML")
    assert (found.engine_config, found.budget, found.startup) == (None, None, None)
    assert found.items == "none"
