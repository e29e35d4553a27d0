"""Child process that fetches a model's small files, because the hub's client trusts the server."""

from __future__ import annotations

import os
import resource
import sys
from multiprocessing.connection import Connection

from mmcalib.files import is_within
from mmcalib.processes import serve_parent
from mmcalib.text import GIB

# A tokenizer has up to 40 MB, the list of a repository's files less.
MOST_FILE_BYTES = 1 << 28
MOST_MEMORY_BYTES = GIB
SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.py", "tokenizer*")
# Short, so that an offline machine gets the bundled geometry quickly; the hub answers far sooner.
REACH_TIMEOUT_S = 4.0

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of `sys.addaudithook` -> indices of the arguments that name written paths.
_PATH_ARGUMENTS = {
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod"), (0,)),
    **dict.fromkeys(("os.link", "os.symlink"), (1,)),
    "os.rename": (0, 1),
}


def restrict_writes(folders: list[str], files: list[str]) -> None:
    """Let this process write only below `folders`, and to `files`, from now on."""
    roots = tuple(os.path.realpath(folder) for folder in folders)
    allowed = {os.path.realpath(file) for file in files}
    # The client may have to create parent folders.
    parents = {root[:end] for root in roots for end, char in enumerate(root) if char == "/"}

    def check_write(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments[:3]
            paths = [path] if isinstance(flags, int) and flags & _WRITES else []
        else:
            paths = [arguments[place] for place in _PATH_ARGUMENTS.get(event, ())]
        if event in ("os.symlink", "os.link"):
            # A server could claim that a file exists, and so link to any file: check the target.
            to, link = (str(path) for path in arguments[:2])
            paths.append(os.path.join(os.path.dirname(link), to))
        for path in paths:
            if not isinstance(path, str | bytes | os.PathLike):
                continue
            where = os.path.realpath(os.fsdecode(path))
            inside = any(is_within(where, root) for root in roots)
            is_parent = event == "os.mkdir" and where in parents
            if not (inside or is_parent or where in allowed or where == os.devnull):
                raise OSError(f"refused to write outside the model's folder: {where}")

    sys.addaudithook(check_write)


def serve(pipe: Connection) -> None:
    """Fetch one model into the hub's cache; answer with its folder, or with why that failed."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    model, endpoint, cache = pipe.recv()
    own = f"models--{model.replace('/', '--')}"
    try:
        import huggingface_hub

        folders = [os.path.join(cache, own), os.path.join(cache, ".locks", own)]
        restrict_writes(folders, [os.path.join(cache, "CACHEDIR.TAG")])
        folder = huggingface_hub.snapshot_download(
            model,
            endpoint=endpoint,
            cache_dir=cache,
            allow_patterns=list(SMALL_FILES),
            etag_timeout=REACH_TIMEOUT_S,
        )
        pipe.send((folder, ""))
    except Exception as error:  # noqa: BLE001 - the client's HTTP libraries and their errors vary
        pipe.send(("", str(error).strip() or type(error).__name__))
    # Do not wait for the client's threads, which may still wait for a server.
    os._exit(0)


if __name__ == "__main__":
    serve_parent(serve)
