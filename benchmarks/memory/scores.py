"""Predicted beside published: errors of each figure, and of two predictions that need no vLLM."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memory.allowances import Allowances
from memory.cases import COMPONENTS, GIB, Case
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.models import gpus
from mmcalib.models.catalogue import find_model

# The second baseline: what is often recommended to leave for activations.
CONSTANT_ACTIVATION_BYTES = int(2.5 * GIB)
# Half of a published figure's last digit, which bounds what an exact prediction can differ by.
_TOKENS_ROUNDING = 0.005


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one case; the unit is the figure's own, bytes for memory."""

    figure: str
    predicted: float
    published: float

    @property
    def error(self) -> float:
        return self.predicted - self.published


@dataclass(frozen=True, slots=True)
class Score:
    """One case: its rows, the two baselines' KV pools, and the budget line beside the log's."""

    case: Case
    answer: RehearsedMemory
    rows: tuple[Row, ...]
    baselines: tuple[float, float]
    budget: tuple[int, int, str] | None

    def row(self, figure: str) -> Row | None:
        return next((row for row in self.rows if row.figure == figure), None)

    @property
    def baseline_errors(self) -> tuple[float, float]:
        pool = self.row("kv pool")
        assert pool is not None
        return (self.baselines[0] - pool.published, self.baselines[1] - pool.published)


def score(case: Case, answer: RehearsedMemory, allowances: Allowances) -> Score:
    """Compare everything that the log prints and the case allows; allowances without this case."""
    outside = allowances.outside_bytes(_kind(case), without=case.id)
    graphs = float(answer.cudagraph_attention_bytes)
    if answer.cudagraph_bytes:
        fitted = allowances.fit(case.id)
        graphs += fitted.predict(answer.cudagraphs, _gated_delta_layers(case, answer))
    pool = answer.kv_cache_bytes + answer.non_torch_bytes + answer.cudagraph_bytes
    pool = round(pool - outside - graphs)
    predicted: dict[str, float] = {
        "weights": answer.weights_bytes,
        "activation peak": answer.activation_peak_bytes,
        "activations and graphs": answer.activation_peak_bytes + graphs,
        "cuda graphs": graphs,
        "non-torch": outside,
        "consumed": answer.weights_bytes + answer.buffers_bytes + outside,
        "kv pool": pool,
    }
    rows = [
        Row(name, predicted[name], published)
        for name in COMPONENTS
        if (published := case.published.components[name]) is not None and name in case.scored
    ]
    per_token = case.published.kv_bytes_per_token
    if per_token is not None and "kv bytes per token" in case.scored:
        rows.append(Row("kv bytes per token", answer.kv_bytes_per_token, per_token))
    if case.published.max_concurrency and "concurrency" in case.scored and answer.max_concurrency:
        scaled = answer.max_concurrency * pool / answer.kv_cache_bytes
        rows.append(Row("concurrency", scaled, case.published.max_concurrency))
    left = answer.requested_bytes - answer.weights_bytes
    return Score(
        case, answer, tuple(rows), (left, left - CONSTANT_ACTIVATION_BYTES), _budget(answer)
    )


def mean_absolute(errors: Iterable[float]) -> float:
    """NaN for none."""
    found = [abs(error) for error in errors]
    return statistics.fmean(found) if found else float("nan")


def with_pool(scores: Sequence[Score], group: str) -> list[Score]:
    """The scores of a group that have a KV pool to compare."""
    return [one for one in scores if one.case.group == group and one.row("kv pool")]


def per_token_is_exact(row: Row, case: Case) -> bool:
    """Whether the printed pool, known to 0.005 GiB, holds the printed tokens of this size."""
    pool, tokens = case.published.components["kv pool"], case.published.kv_cache_tokens
    assert pool is not None
    assert tokens
    return abs(row.predicted * tokens - pool) <= _TOKENS_ROUNDING * GIB + row.predicted * 16


def _kind(case: Case) -> str:
    gpu, (major, minor) = gpus.find_gpu(case.gpu), map(int, case.release.split(".")[:2])
    if gpu.unified:
        return "unified"
    is_newer = (major, minor) >= (0, 20) and (gpu.capability or (0, 0)) >= (9, 0)
    return "newer" if is_newer else "older"


def _gated_delta_layers(case: Case, answer: RehearsedMemory) -> int:
    """0 where the model has none."""
    geometry = find_model(case.geometry)
    if "GDN_ATTN" not in answer.attention or geometry is None:
        return 0
    return int(geometry.values("config")["text_config"]["num_hidden_layers"])


def _budget(answer: RehearsedMemory) -> tuple[int, int, str] | None:
    budget = answer.budget
    if budget is None or budget.profiled_modality is None:
        return None
    return budget.encoder_cache_size, budget.profiled_items, budget.profiled_modality
