"""What to do where it does not fit."""
