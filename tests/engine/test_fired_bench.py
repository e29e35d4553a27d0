"""The worst order's file, read by vLLM's own benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmcalib.domain.shapes import ImageShape
from mmcalib.domain.traffic import TrafficItem, TrafficRequest
from mmcalib.engine.environment import shimmed_environment
from mmcalib.workflows.traffic.fired import fired

pytestmark = pytest.mark.engine

# As `vllm bench serve --dataset-name custom_image --disable-shuffle --num-prompts 0` reads a file.
READ = """
import json, sys
from vllm.benchmarks.datasets.datasets import CustomImageDataset
data = CustomImageDataset(dataset_path=sys.argv[1], disable_shuffle=True, random_seed=0)
found = data.sample(None, 0, output_len=1, no_oversample=True)
print(json.dumps([one.prompt for one in found]))
"""


def test_every_request_is_read_in_its_order(tmp_path: Path) -> None:
    items = [TrafficItem(ImageShape(9, 7), name) for name in "abc"]
    requests = [TrafficRequest("r", 2, 1, (items[0], items[1])), TrafficRequest("r", 3, 1)]
    requests += [TrafficRequest("r", 1, 1, (items[2],), group=1)]
    lines = list(fired(requests))
    path = tmp_path / "worst.jsonl"
    path.write_text("\n".join(lines))
    ended = subprocess.run(
        [sys.executable, "-c", READ, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=shimmed_environment(os.environ),
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    prompts = json.loads(ended.stdout.splitlines()[-1])
    assert prompts == [json.loads(line)["messages"][0]["content"] for line in lines]
    assert [len(prompt) for prompt in prompts] == [3, 1, 2]
