"""Jinja templates that write the larger pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def page(template: Path, filters: Mapping[str, Callable[..., str]], **values: Any) -> str:
    """Fill the template of Markdown; a name that it lacks is an error."""
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(filters)
    return environment.get_template(template.name).render(values)
