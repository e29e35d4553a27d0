"""What Ray Data LLM, Ray Serve and `vllm bench` themselves read of the forms that are theirs."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmcalib.engine.environment import child_environment
from mmcalib.report.registry import CONFIGURATIONS
from mmcalib.workflows.gate.calibration import Calibration

pytestmark = pytest.mark.engine

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "example" / "calibration.json"
CALIBRATION = Calibration.load(EXAMPLE)
WITHOUT_MODEL = {n: v for n, v in CALIBRATION.engine_args().items() if n != "model"}

BENCH = """
import argparse, json, shlex, sys
from vllm.benchmarks.serve import add_cli_args
parser = argparse.ArgumentParser()
add_cli_args(parser)
words = shlex.split(open(sys.argv[1]).read().replace("\\\\\\n", " "))
read = parser.parse_args(["--model", "m", *words])
print(json.dumps({
    "name": read.dataset_name, "backend": read.backend,
    "buckets": [[*key, share] for key, share in read.random_mm_bucket_config.items()],
    "limits": read.random_mm_limit_mm_per_prompt, "base": read.random_mm_base_items_per_request,
}))
"""
RAY_DATA = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("engine", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
config = module.CONFIG
stage = config.prepare_multimodal_stage
print(json.dumps({
    "source": config.model_source, "engine": config.engine_kwargs,
    "enabled": stage["enabled"] if isinstance(stage, dict) else stage.enabled,
}))
"""


def read(script: str, form: str, folder: Path) -> dict[str, Any]:
    file = folder / CONFIGURATIONS[form].file
    file.write_text(CONFIGURATIONS[form].render(CALIBRATION), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, str(file)],
        env=child_environment(os.environ, offline=True),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_bench_reads_the_load(tmp_path: Path) -> None:
    found = read(BENCH, "bench", tmp_path)
    assert (found["name"], found["backend"], found["base"]) == ("random-mm", "openai-chat", 2)
    assert found["limits"] == {"image": 4, "video": 1}
    assert [2700, 5400, 1] in [key for *key, _ in found["buckets"]]
    assert sum(share for *_, share in found["buckets"]) == pytest.approx(1, abs=1e-4)


def test_ray_data_reads_its_processor(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    found = read(RAY_DATA, "ray-data", tmp_path)
    assert found["source"] == CALIBRATION.engine_config["model"]
    # Ray adds what the engine is for.
    assert found["engine"] == {**WITHOUT_MODEL, "task_type": "generate"}
    assert found["enabled"] is True


def test_ray_serve_has_the_fields_of_its_application() -> None:
    """Its classes need packages that only its own extra brings: held against their source."""
    spec = importlib.util.find_spec("ray")
    if spec is None or spec.origin is None:
        pytest.skip("needs ray")
    root = Path(spec.origin).parent
    text = CONFIGURATIONS["ray-serve"].render(CALIBRATION)
    (application,) = yaml.safe_load(text)["applications"]
    assert application.keys() <= fields(root / "serve/schema.py", "ServeApplicationSchema")
    module, _, name = application["import_path"].partition(":")
    assert module == "ray.serve.llm"
    assert name in (root / "serve/llm/__init__.py").read_text("utf-8")
    (model,) = application["args"]["llm_configs"]
    source = root / "llm/_internal/serve/core/configs/llm_config.py"
    assert model.keys() <= fields(source, "LLMConfig")
    assert model["model_loading_config"].keys() <= fields(source, "ModelLoadingConfig")
    assert model["engine_kwargs"] == WITHOUT_MODEL


def fields(source: Path, name: str) -> set[str]:
    """Those that a class of pydantic declares."""
    tree = ast.parse(source.read_text("utf-8"))
    (found,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    return {
        node.target.id
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
