"""The checks of `run` and `validate`."""
