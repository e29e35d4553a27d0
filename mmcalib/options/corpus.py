"""What is read, and where results go: options that several commands have."""

from pathlib import Path
from typing import Annotated

from mmcalib.options.option import Option, Words

Data = Annotated[
    list[str | Path] | None,
    Option(
        metavar="SOURCE",
        help="Folder, file, 'pattern', archive or URL of media; @FILE or - reads paths; may be "
        "repeated.",
        words=Words(list[str]),
        basic=True,
    ),
]
Requests = Annotated[
    list[Path] | None,
    Option(
        metavar="FILE",
        help="JSONL of OpenAI chat requests with local media; may be repeated.",
        basic=True,
    ),
]
AllowedRoot = Annotated[
    Path | None,
    Option(
        metavar="DIR",
        help="Root below which requests may name files; default: their own folder.",
        wrong="{option} {given} is not a folder",
        hint="the folder below which requests may name files",
    ),
]
AllowedDomains = Annotated[
    list[str] | None,
    Option(
        metavar="HOST[,HOST]",
        help="Hosts from which media may be read, also by redirects; may be repeated.",
    ),
]
Out = Annotated[Path, Option(metavar="DIR", help="Folder for the results.", basic=True)]
