"""Run the snippet of docs/how-to/deploy.md in Ray Data LLM, by MMCALIB_RAY_PYTHON if set.

On this machine's CPU, with what that needs laid over its `config`: a checkpoint of one narrow layer
of each stack with dummy weights, which takes and refuses what the whole one does.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mmcalib import Calibration
from mmcalib.engine.environment import child_environment
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from judging.calibrated import narrowed
from judging.subject import subject

pytestmark = [pytest.mark.engine, pytest.mark.long]
SAMPLE = (ROOT / "sample").resolve()
REQUESTS = SAMPLE / "requests.jsonl"
SUBJECT = subject("qwen2.5-vl")
SNIPPET = re.compile(r"<!-- ray-data -->\n```python\n(.*?)```", re.S)
PROGRAM = Path(__file__).with_name("ray_data_process.py")


def run(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a group of its own, so that what Ray has started ends with it."""
    env = {**child_environment(os.environ), "RAY_USAGE_STATS_ENABLED": "0"}
    # The stage and its engine in two processes, as users have them.
    del env["VLLM_ENABLE_V1_MULTIPROCESSING"]
    # Threads that wait for each other by spinning take the CPU from the stages that decode.
    env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [str(python), "-P", *words]
    process = subprocess.Popen(command, env=env, start_new_session=True, **pipes)  # type: ignore[call-overload]
    try:
        out, err = process.communicate(timeout=1500)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.fixture(scope="module")
def python() -> Path:
    found = Path(os.environ.get("MMCALIB_RAY_PYTHON", sys.executable))
    # What its stage that loads media imports of vLLM.
    done = run(found, "-c", "import ray.data.llm, vllm.entrypoints.chat_utils")
    if done.returncode:
        why = done.stderr.strip().rpartition("\n")[2]
        pytest.skip(f"no Ray Data LLM under {found}: {why}")
    return found


@pytest.fixture(scope="module")
def out(python: Path, sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrate for the sample, and write the page's snippet beside the results."""
    made = tmp_path_factory.mktemp("ray") / "out"
    words = ["run", "--model", SUBJECT.model, "--requests", str(REQUESTS), "--out", str(made)]
    words += ["--validate", "budget", "--quiet", "--", "--allowed-local-media-path", str(sample)]
    done = run(python, "-m", "mmcalib", *words)
    assert (made / "engine.yaml").exists(), done.stderr[-4000:]
    (snippet,) = SNIPPET.findall((ROOT / "docs/how-to/deploy.md").read_text("utf-8"))
    (made / "ray_engine.py").write_text(snippet.replace('"out"', repr(str(made))), "utf-8")
    return made


def media(request: dict[str, Any]) -> list[dict[str, Any]]:
    contents = [message["content"] for message in request["messages"]]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    return [part for part in parts if part["type"] != "text"]


def asked() -> list[dict[str, Any]]:
    """Read the sample's requests with media by URLs of files, and texts as parts: a column of a
    dataset has one type.
    """
    found: list[dict[str, Any]] = list(map(json.loads, REQUESTS.read_text("utf-8").splitlines()))
    for request in found:
        for message in request["messages"]:
            if isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]
        for part in media(request):
            part[part["type"]]["url"] = (SAMPLE / part[part["type"]]["url"]).as_uri()
    return found


def processed(python: Path, module: Path, folder: Path, **engine_kwargs: Any) -> list[Any]:
    """Send the requests through the processor of `module`, with `engine_kwargs` over its own."""
    requests, answers = folder / "asked.jsonl", folder / "answers.jsonl"
    requests.write_text("".join(json.dumps(one) + "\n" for one in asked()), "utf-8")
    checkpoint = narrowed(SUBJECT, folder)
    # Ray looks for a template where published checkpoints have it: as the processor's.
    tokenizer = json.loads((checkpoint / "tokenizer_config.json").read_text("utf-8"))
    (checkpoint / "chat_template.jinja").write_text(tokenizer["chat_template"], "utf-8")
    dummy = {"load_format": "dummy", "enforce_eager": True, "kv_cache_memory_bytes": 1 << 30}
    here = {
        "model_source": str(checkpoint),
        # Ray Data asks for a GPU otherwise.
        "placement_group_config": {"bundles": [{"CPU": 1}]},
        # A row that fails is told and does not end the job.
        "should_continue_on_error": True,
        "engine_kwargs": {**dummy, **engine_kwargs},
    }
    done = run(python, str(PROGRAM), *map(str, (module, requests, answers)), json.dumps(here))
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return list(map(json.loads, answers.read_text("utf-8").splitlines()))


def test_the_sample_corpus_is_processed_as_it_was_counted(python, out, tmp_path: Path) -> None:
    rows = processed(python, out / "ray_engine.py", tmp_path)
    answered = [row["custom_id"] for row in rows if not row["error"] and row["answer_tokens"] > 0]
    requests = asked()
    assert Counter(answered) == Counter(one["custom_id"] for one in requests), rows
    calibration = Calibration.load(out / "calibration.json")
    assert sum(len(media(one)) for one in requests) == calibration.corpus.items
    taken = {row["custom_id"]: row["prompt_tokens"] for row in rows}
    for request in requests:
        answer = calibration.admits(request, allowed_local_media_path=SAMPLE)
        counted = re.fullmatch(r"(\d+) tokens of media \+ (at most )?(\d+) of text", answer.reason)
        assert counted is not None, answer.reason
        of_media, bounded, text = counted.groups()
        # Ray has vLLM join the parts of a message by line ends, which a server does not.
        joined = sum(len(message["content"]) - 1 for message in request["messages"])
        most = int(of_media) + int(text) + joined
        assert (int(of_media) if bounded else most - 1) < taken[request["custom_id"]] <= most


def test_a_limit_that_is_too_low_loses_items(python: Path, out: Path, tmp_path: Path) -> None:
    low = {"limit_mm_per_prompt": {"image": 1, "video": 1}}
    rows = processed(python, out / "ray_engine.py", tmp_path, **low)
    assert any("At most 1 image(s)" in row["error"] for row in rows)
