"""The child's loop: read a request, hand it to vLLM, answer. Ends when the parent goes away."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection

PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """On Linux: the kernel kills this process when the parent dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe: Connection = Connection(int(sys.argv[1]))
    from mmcalib.engine.child.service import serve

    serve(pipe)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
