"""Requests through the engine core, on whatever GPU it finds."""
