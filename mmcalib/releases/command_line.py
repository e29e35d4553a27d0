"""The command `vllm`, and the parser of its part `serve`."""

from __future__ import annotations

import argparse
from functools import cache
from typing import Any

from mmcalib.releases.release import VLLM_0_13


@cache
def _raising() -> Any:
    if VLLM_0_13.reached:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    else:
        from vllm.utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc] # vLLM has no stubs
        """vLLM's parser, except that a complaint is raised instead of ending the process."""

        def error(self, message: str) -> Any:
            raise argparse.ArgumentTypeError(message)

    return Parser


def parsers() -> tuple[Any, Any]:
    """vLLM's parser, and its part for `serve`. A complaint is an ArgumentTypeError."""
    from vllm.entrypoints.cli.serve import ServeSubcommand

    parser = _raising()(prog="vllm")
    return parser, ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))


def run() -> None:
    """vLLM's own command line, with the words of this process."""
    from vllm.entrypoints.cli.main import main

    main()
