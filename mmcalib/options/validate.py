"""How far `mmcalib validate` proves a configuration, and for how long it may."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from mmcalib.options.option import Bounds, Option, Options

Depth = Literal["budget", "startup", "replay"]

# Seconds that one profile and one replay may each take on this machine.
STARTUP_BUDGET_S = 90.0

StartupBudget = Annotated[
    float,
    Bounds(at_least=0, below=math.inf),
    Option(
        spelled=("--startup-budget",),
        metavar="SECONDS",
        help="What profile and replay may each take here.",
        wrong="{option} must be a number of seconds, 0 or more",
        hint="--startup-budget 90",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOptions(Options):
    """For a configuration that somebody wrote."""

    validate: Annotated[
        Depth, Option(metavar="HOW", help="How far to prove it: budget, startup or replay.")
    ] = "replay"
    startup_budget_s: StartupBudget = STARTUP_BUDGET_S
