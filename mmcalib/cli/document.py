"""`--json`: one document on standard output."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel


def print_json(found: BaseModel | Sequence[BaseModel]) -> None:
    """All of it as ASCII: what of a file name is not UTF-8 stays an escape."""
    from pydantic import BaseModel

    whole = found.model_dump() if isinstance(found, BaseModel) else [f.model_dump() for f in found]
    sys.stdout.write(json.dumps(whole, indent=2) + "\n")
