"""Fetches a model's small files apart: the client trusts a server's file names and patience."""

from __future__ import annotations

import os
import resource
import sys
from multiprocessing.connection import Connection
from typing import NamedTuple

from mmcalib.processes import serve_parent
from mmcalib.text import GIB

# A tokenizer takes up to 40 MB, the list of a repository's files less than that.
MOST_FILE_BYTES = 1 << 28
MOST_MEMORY_BYTES = GIB

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Per event of `sys.addaudithook` the arguments that name what is written.
_NAMING = {
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod"), (0,)),
    **dict.fromkeys(("os.link", "os.symlink"), (1,)),
    "os.rename": (0, 1),
}


class FetchRequest(NamedTuple):
    """`cache` is the hub's cache folder, below which the model has one of its own."""

    model: str
    revision: str | None
    endpoint: str
    cache: str
    patterns: list[str]
    timeout_s: float


class Elsewhere(OSError):  # noqa: N818 - where to, not what went wrong
    """A file would be written where none of this model belongs."""


def keep_to(folders: list[str], files: list[str]) -> None:
    """From now on this process writes only below `folders`, and to `files`."""
    roots = tuple(os.path.realpath(folder) for folder in folders)
    named = {os.path.realpath(file) for file in files}
    # What leads there may have to be made.
    above = {root[:end] for root in roots for end, char in enumerate(root) if char == "/"}

    def watch(event: str, given: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = given[:3]
            paths = [path] if isinstance(flags, int) and flags & _WRITES else []
        else:
            paths = [given[place] for place in _NAMING.get(event, ())]
        if event in ("os.symlink", "os.link"):
            # What is said to be there already would be linked to, whatever it is.
            to, link = (str(path) for path in given[:2])
            paths.append(os.path.join(os.path.dirname(link), to))
        for path in paths:
            if not isinstance(path, str | bytes | os.PathLike):
                continue
            where = os.path.realpath(os.fsdecode(path))
            inside = any(where == root or where.startswith(root + "/") for root in roots)
            way = event == "os.mkdir" and where in above
            if not (inside or way or where in named or where == os.devnull):
                raise Elsewhere(f"a file would be written elsewhere: {where}")

    sys.addaudithook(watch)


def serve(pipe: Connection) -> None:
    """Answer one `FetchRequest` by the folder, and by why there is none."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    order: FetchRequest = pipe.recv()
    own = f"models--{order.model.replace('/', '--')}"
    try:
        import huggingface_hub

        folders = [os.path.join(order.cache, own), os.path.join(order.cache, ".locks", own)]
        keep_to(folders, [os.path.join(order.cache, "CACHEDIR.TAG")])
        folder = huggingface_hub.snapshot_download(
            order.model,
            revision=order.revision,
            endpoint=order.endpoint,
            cache_dir=order.cache,
            allow_patterns=order.patterns,
            etag_timeout=order.timeout_s,
        )
        pipe.send((folder, ""))
    except Exception as error:  # noqa: BLE001 - the client's HTTP library, and so its errors, vary
        pipe.send(("", str(error).strip() or type(error).__name__))
    # Threads of the client may still wait for an answer.
    os._exit(0)


if __name__ == "__main__":
    serve_parent(serve)
