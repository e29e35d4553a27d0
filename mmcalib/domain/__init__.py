"""Frozen value types. Nothing here reads files, prompts the user or knows a serialization."""
