"""What a user can ask for: each option once, for the command line and the library.

Importing these loads neither pydantic nor typer: `option.checked` builds the model when there are
values, `mmcalib.cli.command` the command line.
"""
