"""What vLLM's sources say of startup memory: each log call and error, with its file and line.

`python -m tests.derive.vllm_formats RELEASE=FOLDER ...` writes `logs/formats.jsonl` anew, from the
folders that hold each release's `vllm` package. Needs no vLLM: the sources are only parsed.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FORMATS = Path(__file__).parent / "logs" / "formats.jsonl"
FOLDERS = ("v1", "multimodal", "utils", "entrypoints", "config")
# Each is in one format that a startup, or its failure, prints.
MARKS = (
    *("Model loading took", "raph capturing finished", "Encoder cache will be initialized"),
    *("Skipping memory profiling for multimodal", "Estimated CUDA graph memory"),
    *("CUDA graph pool memory", "CUDA graph memory profiling is", "Available KV cache memory"),
    *("KV cache size: %s tokens", "Maximum concurrency for", "Initial free memory: "),
    *("memory for KV Cache as specified", "Free memory on device", "Total non KV cache memory"),
    *("frontend multimodal", "Weights are held outside", "Externally held weights"),
    *("No available memory for the cache blocks", "To serve at least one request"),
    *("Auto-fit max_model_len: reduced", "when warming up", "embedding tokens, which exceeds"),
    *("Auto set (", "Using max model len", "Chunked prefill is enabled"),
    *("Using V2 Model Runner", "using the V1 model runner instead", "LLM engine (v"),
    *("server version %s", "Starting to load model", "Chunked MM input disabled but"),
)


@dataclass(frozen=True, slots=True)
class Format:
    """One call: `kind` is the logger's method, `raise`, or `repr`."""

    path: str
    line: int
    kind: str
    text: str


def formats(package: Path) -> Iterator[Format]:
    """All of a `vllm` package, by path and line."""
    for folder in FOLDERS:
        for path in sorted((package / folder).rglob("*.py")):
            name = str(path.relative_to(package))
            for found in _formats(name, ast.parse(path.read_text(encoding="utf-8"))):
                if any(mark in found.text for mark in MARKS):
                    yield found


def _formats(path: str, tree: ast.AST) -> Iterator[Format]:
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        named: dict[str, str] = {}
        for node in ast.walk(scope):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    named[name] = _text(value, named)
        for node in ast.walk(scope):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="logger" | "lgr"), attr=kind),
                    args=[said, *_],
                ):
                    yield Format(path, node.lineno, kind, _text(said, named))
                case ast.Raise(exc=ast.Call(args=[said, *_])):
                    yield Format(path, node.lineno, "raise", _text(said, named))
                case ast.Return(value=ast.JoinedStr() as said) if scope.name == "__repr__":
                    yield Format(path, node.lineno, "repr", _text(said, named))


def _text(node: ast.expr, named: dict[str, str]) -> str:
    """The string, every replaced field of an f-string as `{}`."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Name(id=name):
            return named.get(name, "")
        case ast.JoinedStr(values=parts):
            return "".join(
                part.value
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
                else "{}"
                for part in parts
            )
    return ""


def main(given: list[str]) -> None:
    """One row for each format: its text, and each release's line."""
    rows: dict[tuple[str, str, str], dict[str, list[int]]] = {}
    for one in given:
        release, _, folder = one.partition("=")
        for found in formats(Path(folder)):
            lines = rows.setdefault((found.path, found.kind, found.text), {})
            lines.setdefault(release, []).append(found.line)
    with FORMATS.open("w", encoding="utf-8") as file:
        for (path, kind, text), lines in sorted(rows.items()):
            row = {"path": path, "kind": kind, "text": text, "lines": lines}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
