"""What Python may import in processes that are started here: nothing from the working folder, which
may be a data set that somebody else made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

# Python's own switch (3.11): neither `-m` nor `-c` looks in the working folder first. As a variable
# it reaches what those processes start in turn.
SAFE = {"PYTHONSAFEPATH": "1"}

_PATH = "PYTHONPATH"


def safe_environment(base: Mapping[str, str], path: Sequence[str] | None = None) -> dict[str, str]:
    """The variables of `base`, with `path` as PYTHONPATH (default: the one of `base`).

    An empty entry, such as a shell leaves in `PYTHONPATH=$PYTHONPATH:/opt/lib`, means the working
    folder and is left out, and so is `.`; other relative ones are made absolute.
    """
    given = base.get(_PATH, "").split(os.pathsep) if path is None else path
    kept = [os.path.abspath(entry) for entry in given if os.path.normpath(entry) != os.curdir]
    others = {name: value for name, value in base.items() if name != _PATH}
    return others | SAFE | ({_PATH: os.pathsep.join(kept)} if kept else {})
