"""Rehearse a configuration's memory, cross-check it, and find remedies."""
