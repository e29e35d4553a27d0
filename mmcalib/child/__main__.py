"""Entry of the child process: answer requests until the parent closes the pipe."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection

from mmcalib.processes import serve_parent


def main(pipe: Connection) -> None:
    from mmcalib.child.service import serve

    serve(pipe)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    serve_parent(main)
