"""`--json`: one document on standard output, of what was found or of what went wrong."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from mmcalib.errors import MmcalibError

_printed = {"json": False}


def print_json(found: BaseModel | Sequence[BaseModel]) -> None:
    """All of it as ASCII: what of a file name is not UTF-8 stays an escape."""
    from pydantic import BaseModel

    whole = found.model_dump() if isinstance(found, BaseModel) else [f.model_dump() for f in found]
    print_document(json.dumps(whole, indent=2))


def print_document(text: str) -> None:
    """Print JSON that is made already, or one line of several."""
    _printed["json"] = True
    sys.stdout.write(text + "\n")


def begin(words: Sequence[str]) -> None:
    """Expect a document where these words of the command line ask for one."""
    own = words[: words.index("--")] if "--" in words else words
    _printed["json"] = "--json" not in own


def print_error(error: MmcalibError) -> None:
    """Print the error as the document that was asked for, unless there is one already."""
    if not _printed["json"]:
        kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__.removesuffix("Error")).lower()
        found = {"kind": kind, "message": error.message, "hint": error.hint}
        print_document(json.dumps({"error": found}, indent=2))
