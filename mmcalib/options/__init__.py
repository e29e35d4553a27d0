"""The options, each declared once for the command line and the library.

Importing this package loads neither pydantic nor typer. `option.make_options` loads pydantic when
it has values to check; `mmcalib.cli.command` builds the command line.
"""
