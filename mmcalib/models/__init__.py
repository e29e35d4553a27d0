"""Bundled facts of well-known models, and where a model's configuration comes from.

Model → `resolve` → a checkpoint folder: local, from the hub (cached or fetched), or materialised
from the facts in `facts/*.json`, where every number carries its status and its source.
"""
