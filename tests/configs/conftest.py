"""The command line, as the other tests run it."""

from tests.cli.conftest import cli as cli
