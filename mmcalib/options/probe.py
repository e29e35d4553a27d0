"""Who probes the media of a corpus, and what is remembered of them."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from mmcalib.census.executors.timeout import TIMEOUT_S
from mmcalib.options.option import Bounds, Option, Options

Where = Literal["local", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions(Options):
    """`workers` are processes here, or on every node of a Ray cluster; what they see is remembered
    below the cache folder, unless `no_cache`.
    """

    workers: Annotated[
        Annotated[int, Bounds(at_least=1)] | None,
        Option(
            metavar="N",
            help="Processes that read media; default: one per CPU.",
            wrong="{option} must be at least 1, not {given}",
            hint="--workers 4",
        ),
    ] = None
    item_timeout_s: Annotated[
        float,
        Bounds(above=0, below=math.inf),
        Option(
            spelled=("--item-timeout",),
            metavar="SECONDS",
            help="An item that takes longer to read is skipped.",
            wrong="{option} must be a number of seconds above 0",
            hint="--item-timeout 30",
        ),
    ] = TIMEOUT_S
    executor: Annotated[
        Where,
        Option(
            metavar="WHERE",
            help="Where media are read: local, or ray: the cluster of RAY_ADDRESS, or a new one.",
        ),
    ] = "local"
    no_cache: Annotated[
        bool, Option(help="Read every file, whether or not it was read before.")
    ] = False


PROBE = ProbeOptions()
