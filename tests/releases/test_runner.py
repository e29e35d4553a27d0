"""What differs between vLLM's model runners is so in the vLLM that is installed."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmcalib.releases.runner import estimates_graphs

METHOD = "profile_cudagraph_memory"


@pytest.fixture(scope="module")
def estimate() -> ast.FunctionDef:
    """The second runner's estimate of CUDA graphs, read: to import it would need a GPU."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("needs vLLM: make setup")
    path = Path(found.origin).parent / "v1/worker/gpu/model_runner.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    methods = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
    return next(one for one in methods if one.name == METHOD)


@pytest.mark.engine
def test_the_second_runner_subtracts_graphs_where_it_estimates_them(
    estimate: ast.FunctionDef,
) -> None:
    last = estimate.body[-1]
    estimates = ast.unparse(last) != "return 0"
    assert estimates_graphs(SimpleNamespace(use_v2_model_runner=True)) == estimates
    assert estimates_graphs(SimpleNamespace(use_v2_model_runner=False))
