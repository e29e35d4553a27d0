"""Pipes whose other end may have stopped reading."""

from __future__ import annotations

import os
import socket
import struct
from multiprocessing import Pipe
from multiprocessing.connection import Connection


def patient_pipe(send_s: float) -> tuple[Connection, Connection]:
    """Both ends of a pipe. Sending through the first raises OSError where the other end takes
    nothing for so long; what was sent then is of no use any more.
    """
    ours, theirs = Pipe()
    with socket.socket(fileno=os.dup(ours.fileno())) as end:
        whole_s = int(send_s)
        patience = struct.pack("@ll", whole_s, round((send_s - whole_s) * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
    return ours, theirs
