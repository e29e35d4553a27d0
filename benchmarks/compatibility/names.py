"""Names of vLLM that mmcalib imports or replaces and the installed release lacks; prints JSON.

It reads vLLM's source and imports none of it, so one missing name does not hide the next.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import mmcalib
from mmcalib.releases import release, targets

_SOURCE = Path(mmcalib.__file__).parent
# vLLM is imported in these packages only.
_PACKAGES = ("releases", "child")


def missing_names() -> list[str]:
    """List each name that is missing, after the first place that wants it."""
    wanted: dict[str, str] = {}
    for path in sorted(one for name in _PACKAGES for one in (_SOURCE / name).rglob("*.py")):
        place = str(path.relative_to(_SOURCE))
        for name in _wanted(ast.parse(path.read_text("utf-8")).body, {}):
            wanted.setdefault(name, place)
    for target in _targets():
        wanted.setdefault(target.name, "releases/targets.py, replaced in a rehearsal")
    return [
        f"{name} ({place})"
        for name, place in sorted(wanted.items())
        if name.startswith("vllm.") and not _exists(tuple(name.split(".")[1:]))
    ]


def _targets() -> Iterator[targets.Target]:
    for value in vars(targets).values():
        for one in value if isinstance(value, tuple) else (value,):
            reached = isinstance(one, targets.Target) and (
                one.since is None or one.since.is_reached
            )
            if reached and not one.optional:
                yield one


def _wanted(body: Iterable[ast.stmt], known: Mapping[str, str]) -> Iterator[str]:
    """Yield what these statements import, and take from it; `known` are names imported before."""
    names = dict(known)
    for statement in _taken(body):
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield from _wanted(statement.body, names)
        elif isinstance(statement, ast.Import):
            yield from (one.name for one in statement.names)
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            for one in statement.names:
                names[one.asname or one.name] = f"{statement.module}.{one.name}"
                yield names[one.asname or one.name]
        else:
            for node in ast.walk(statement):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    yield f"{names.get(node.value.id)}.{node.attr}"


def _taken(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of the branches that this release takes, without `if`, `with` and `try`
    themselves; not those of a `try` that expects a name to be missing.
    """
    for statement in body:
        taken = _is_taken(statement.test) if isinstance(statement, ast.If) else None
        if isinstance(statement, ast.If) and taken is not None:
            branch = statement.body if taken else statement.orelse
            yield from _taken(branch)
            if branch and isinstance(branch[-1], ast.Return):
                return
        elif isinstance(statement, ast.If | ast.With | ast.Try):
            if not (isinstance(statement, ast.Try) and _may_fail(statement)):
                yield from _taken([*statement.body, *getattr(statement, "orelse", ())])
        else:
            yield statement


def _may_fail(statement: ast.Try) -> bool:
    caught = "".join(ast.unparse(one.type) for one in statement.handlers if one.type)
    return "ImportError" in caught or "NotFound" in caught or "AttributeError" in caught


def _is_taken(test: ast.expr) -> bool | None:
    """Return the value of `VLLM_0_33.is_reached` or of its negation; None of anything else."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        found = _is_taken(test.operand)
        return None if found is None else not found
    if not isinstance(test, ast.Attribute) or test.attr != "is_reached":
        return None
    known = getattr(release, ast.unparse(test.value).rpartition(".")[2], None)
    return known.is_reached if isinstance(known, release.Release) else None


def _exists(parts: tuple[str, ...]) -> bool:
    """True for a module, a name in one, or what a class may inherit."""
    for cut in range(len(parts), -1, -1):
        path = _module(parts[:cut])
        if path is None:
            continue
        rest = parts[cut:]
        if not rest or path.suffix != ".py":
            return True
        names: Mapping[str, ast.stmt] = _defined(path)
        if "*" in names or "__getattr__" in names:
            return True
        holder = names.get(rest[0])
        if holder is None or len(rest) == 1 or not isinstance(holder, ast.ClassDef):
            return holder is not None
        return bool(holder.bases) or rest[1] in dict(_bindings(holder.body))
    return False


def _module(parts: tuple[str, ...]) -> Path | None:
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.submodule_search_locations is not None
    path = Path(found.submodule_search_locations[0], *parts)
    if path.is_dir():
        return path / "__init__.py" if (path / "__init__.py").exists() else path
    built = (*path.parent.glob(f"{path.name}.py"), *path.parent.glob(f"{path.name}.*so"))
    return next(iter(built), None) if parts else None


@cache
def _defined(path: Path) -> dict[str, ast.stmt]:
    return dict(_bindings(ast.parse(path.read_text("utf-8")).body))


def _bindings(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each name that these statements bind, whatever branch does; `*` for all of a module."""
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement.name, statement
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for one in statement.names:
                yield (one.asname or one.name).partition(".")[0], statement
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id, statement
        inner = (getattr(statement, field, ()) for field in ("body", "orelse", "finalbody"))
        for part in (*inner, *(one.body for one in getattr(statement, "handlers", ()))):
            yield from _bindings(part)


if __name__ == "__main__":
    print(json.dumps(missing_names()))
