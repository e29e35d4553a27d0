"""A corpus through Ray Data LLM, by the recipe of docs/how-to/deploy.md.

    python benchmarks/ray_data_llm.py sample [--python bin/python]

The model is calibrated for CORPUS/requests.jsonl, and the page's snippet processes these requests
on this machine's CPU, with what that needs laid over its `config`: a checkpoint of one narrow layer
of each stack with dummy weights, which takes and refuses what the whole one does. Once as
calibrated, and once with a limit that is too low: that run has to show errors. Exits 1 where it
shows none, or where the first lost an item.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from judging.calibrated import narrowed  # noqa: E402
from judging.subject import subject  # noqa: E402

from mmcalib.engine.environment import child_environment  # noqa: E402
from mmcalib.errors import MmcalibError  # noqa: E402

SUBJECT, REQUESTS = subject("qwen2.5-vl"), "requests.jsonl"
PAGE = ROOT / "docs" / "how-to" / "deploy.md"
_SNIPPET = re.compile(r"<!-- ray-data -->\n```python\n(.*?)```", re.S)
# One item in a request, where requests of the corpus have several.
TOO_LOW = {"limit_mm_per_prompt": {"image": 1, "video": 1}}
_PROGRAM = Path(__file__).with_name("ray_data_process.py")
# What its stage that loads media imports of vLLM.
_NEEDED = "import ray.data.llm, vllm.entrypoints.chat_utils"
_MOST_S = 1500
_LAST_CHARS = 4000


class Row(NamedTuple):
    """What came out for a request; `error` is empty where it was answered."""

    custom_id: str
    prompt_tokens: int
    answer_tokens: int
    error: str


class Processed(NamedTuple):
    """A run over the requests, and the items of each by its `custom_id`."""

    items: Mapping[str, int]
    rows: Sequence[Row]

    @property
    def answered(self) -> Counter[str]:
        return Counter(row.custom_id for row in self.rows if not row.error and row.answer_tokens)

    @property
    def errors(self) -> Counter[str]:
        return Counter(row.error for row in self.rows if row.error)

    @property
    def whole(self) -> bool:
        """Whether each request came out once, and answered."""
        return self.answered == Counter(self.items.keys())

    def __str__(self) -> str:
        return (
            f"{sum(map(self.items.__getitem__, self.answered)):,} of {sum(self.items.values()):,} "
            f"items processed in {len(self.answered):,} of {len(self.items):,} requests"
        )


def calibrated(python: Path, corpus: Path, out: Path) -> Path:
    """The snippet of the page as a module, with a calibration for the requests of the corpus in
    `out`. Raises MmcalibError where there is none.
    """
    corpus = corpus.resolve()
    words = [
        *("run", "--model", SUBJECT.model, "--requests", str(corpus / REQUESTS)),
        *("--out", str(out), "--validate", "budget", "--quiet"),
        *("--", "--allowed-local-media-path", str(corpus)),
    ]
    done = _run(python, ["-m", "mmcalib", *words])
    if not (out / "engine.yaml").exists():
        raise MmcalibError(f"no engine.yaml: {done.stderr[-_LAST_CHARS:]}")
    (snippet,) = _SNIPPET.findall(PAGE.read_text("utf-8"))
    module = out / "ray_engine.py"
    module.write_text(snippet.replace('"out"', repr(str(out))), "utf-8")
    return module


def processed(
    python: Path, module: Path, requests: Path, folder: Path, **engine_kwargs: Any
) -> Processed:
    """The requests through the processor of `module`, with `engine_kwargs` in place of its own.
    Raises MmcalibError where Ray gives up.
    """
    asked, answers = folder / "asked.jsonl", folder / "answers.jsonl"
    lines = [json.loads(line) for line in requests.read_text("utf-8").splitlines()]
    with asked.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(located(one, requests.parent)) + "\n" for one in lines)
    here = {
        "model_source": str(_with_template(narrowed(SUBJECT, folder))),
        # Ray Data asks for a GPU otherwise.
        "placement_group_config": {"bundles": [{"CPU": 1}]},
        # A row that fails is told and does not end the job.
        "should_continue_on_error": True,
        "engine_kwargs": {
            "load_format": "dummy",
            "enforce_eager": True,
            "kv_cache_memory_bytes": 1 << 30,
            **engine_kwargs,
        },
    }
    words = [str(_PROGRAM), str(module), str(asked), str(answers), json.dumps(here)]
    done = _run(python, words)
    if done.returncode != 0:
        raise MmcalibError(f"Ray gave up: {(done.stdout + done.stderr)[-_LAST_CHARS:]}")
    rows = [Row(**json.loads(line)) for line in answers.read_text("utf-8").splitlines()]
    return Processed({one["custom_id"]: len(_media(one)) for one in lines}, rows)


def located(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same with its media, which are named from `folder`, by the URLs of files, and its texts
    as parts: a column of a dataset has one type.
    """
    for message in request["messages"]:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    for part in _media(request):
        part[part["type"]]["url"] = (folder.resolve() / part[part["type"]]["url"]).as_uri()
    return request


def _media(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    contents = [message["content"] for message in request["messages"]]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    return [part for part in parts if part["type"] != "text"]


def _with_template(checkpoint: Path) -> Path:
    """The same with its chat template where Ray looks for it alone, and published checkpoints have
    it: as the processor's, not the tokenizer's.
    """
    tokenizer = json.loads((checkpoint / "tokenizer_config.json").read_text("utf-8"))
    (checkpoint / "chat_template.jinja").write_text(tokenizer["chat_template"], "utf-8")
    return checkpoint


def lacking(python: Path) -> str:
    """What keeps Ray Data LLM from running under this interpreter; nothing where it does."""
    done = _run(python, ["-c", _NEEDED])
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def _run(python: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Python in a group of its own, so that what Ray has started ends with it."""
    env = {**child_environment(os.environ, offline=True), "RAY_USAGE_STATS_ENABLED": "0"}
    # The stage and its engine in two processes, as users have them.
    del env["VLLM_ENABLE_V1_MULTIPROCESSING"]
    # Threads that wait for each other by spinning take the CPU from the stages that decode.
    env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [str(python), "-P", *words],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=_MOST_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path, help="folder with media and requests.jsonl")
    python = "an interpreter with Ray and a vLLM that it takes (this one)"
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help=python)
    given = parser.parse_args()
    if why := lacking(given.python):
        sys.exit(f"no Ray Data LLM under {given.python}: {why}")
    requests = given.corpus / REQUESTS
    with TemporaryDirectory() as name:
        folder = Path(name)
        module = calibrated(given.python, given.corpus, folder / "out")
        whole = processed(given.python, module, requests, folder)
        print(f"as calibrated: {whole}", flush=True)
        lowered = processed(given.python, module, requests, folder, **TOO_LOW)
        print(f"with {json.dumps(TOO_LOW)}: {lowered}; {lowered.errors}")
    if not whole.whole or not lowered.errors:
        sys.exit("items were lost as calibrated, or none with a limit that is too low")


if __name__ == "__main__":
    main()
