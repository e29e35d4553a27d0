"""The command line as in tests/cli, for attacks that come as files."""

from tests.cli.conftest import cli

__all__ = ["cli"]
