"""What a user can ask for: each option once, for the command line and the library.

Importing these loads neither pydantic nor typer: `option.make_options` loads pydantic when there
are values to check, `mmcalib.cli.command` makes the command line.
"""
