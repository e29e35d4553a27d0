"""Bundled facts of well-known models, and where a model's configuration comes from.

Model → `resolve` → checkpoint folder: local, from the hub, or written from `facts/*.json`.
"""
