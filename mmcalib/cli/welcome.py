"""What `mmcalib` says to somebody who types just that."""

from __future__ import annotations

from collections.abc import Mapping

WHAT = """\
mmcalib measures what the images, videos and audio that you serve cost in vLLM,
derives its multimodal limits from that, and proves them with the real engine.
It needs neither a GPU nor weights."""
START = """\
Start with a folder of your media:
  mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data ./media --gpu L4
  vllm serve --config out/engine.yaml"""
NEXT = """\
mmcalib COMMAND --help shows its options, mmcalib doctor what is missing here."""


def welcome(commands: Mapping[str, str]) -> str:
    """The text, with a line for each command and what it is for."""
    width = max(map(len, commands))
    table = "\n".join(f"  {name:<{width}}  {purpose}" for name, purpose in commands.items())
    return f"{WHAT}\n\n{START}\n\nCommands:\n{table}\n\n{NEXT}"
