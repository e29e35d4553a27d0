"""A process that counts texts: `python -m mmcalib.texts.worker PIPE LIMIT`.

A template and the patterns of a tokenizer may come from somebody else, and may take for ever; so
may the texts. What is sent is JSON, and what comes back is.
"""

from __future__ import annotations

import json
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from pydantic import TypeAdapter

from mmcalib.models.hub import cached_snapshot
from mmcalib.processes.confine import belong_to_parent, confine
from mmcalib.texts.counter import TextCounter
from mmcalib.texts.recipe import TextRecipe, Uncounted

RECIPE: TypeAdapter[TextRecipe] = TypeAdapter(TextRecipe)
_INSTALL = "the package tokenizers is not installed: pip install 'mmcalib[check]'"


def main(pipe_fd: int, memory_bytes: int) -> None:
    """Serve until the pipe closes. The first message is the model and its recipe, answered by why
    they cannot be used, or by nothing; each that follows is a request, answered by its tokens, or
    by null where it is not counted.
    """
    belong_to_parent()
    pipe = Connection(pipe_fd)
    try:
        confine(memory_bytes)
        model, recipe = json.loads(pipe.recv_bytes())
        counter, why = _opened(model, RECIPE.validate_python(recipe))
        pipe.send_bytes(json.dumps(why).encode())
        while counter:
            pipe.send_bytes(json.dumps(_tokens(counter, pipe.recv_bytes())).encode())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _opened(model: str, recipe: TextRecipe) -> tuple[TextCounter | None, str]:
    import os

    folder = Path(model) if Path(model).is_dir() else cached_snapshot(model, None, os.environ)
    if folder is None:
        return None, f"{model} is neither a folder nor in the hub cache"
    try:
        return TextCounter.at(folder, recipe), ""
    except ImportError:
        return None, _INSTALL
    except Uncounted as error:
        return None, f"{model}: {error}"


def _tokens(counter: TextCounter, request: bytes) -> int | None:
    try:
        return counter.count(*json.loads(request))
    except Uncounted:
        return None


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
