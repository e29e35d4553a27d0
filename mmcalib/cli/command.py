"""A command for Typer: its options once each, a dataclass of options for those that it holds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from mmcalib.cli.usage_errors import drop_output, reader_has_left
from mmcalib.errors import UsageError
from mmcalib.options.option import OptionField, Options, option_of, options_of

# Where `mmcalib run --help-all` lists the options that are not `basic`.
MORE = "More options"


class OnceEach(TyperCommand):
    """Refuses an option that is given twice but counts once: the last would win silently. A reader
    that leaves, as `head` does, ends it quietly.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        *_, order = self.make_parser(ctx).parse_args(list(args))
        seen = set()
        for option in order:
            if option.name in seen and not getattr(option, "multiple", True):
                name = max(option.opts, key=len)
                value = "" if getattr(option, "is_flag", False) else f" {option.metavar or 'VALUE'}"
                raise UsageError(f"{name} is given twice", hint=f"once: {name}{value}")
            seen.add(option.name)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            if not reader_has_left():
                raise
            drop_output()
            return None


def command(function: Callable[..., None]) -> Callable[..., None]:
    """The function as Typer calls it: with words, of which it gets options that were checked."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if _is_group(kind)}

    @wraps(function)
    def called(**words: Any) -> None:
        taken = {name: words[name] for name in hints.keys() & words.keys()}
        for name, kind in groups.items():
            own = {field.name: words[field.name] for field in options_of(kind)}
            taken[name] = kind.of_words(own)
        function(**taken)

    shown = [
        parameter
        for given in inspect.signature(function).parameters.values()
        for parameter in _parameters(given.replace(annotation=hints[given.name]))
    ]
    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Options)


def _parameters(given: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """What Typer sees of a parameter: itself, its option as Typer has it, or those of its group."""
    if _is_group(given.annotation):
        yield from map(_parameter, options_of(given.annotation))
    elif (option := option_of(given.annotation)) is not None:
        yield _parameter(OptionField(given.name, given.annotation, option, given.default))
    else:
        yield given.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _parameter(field: OptionField) -> inspect.Parameter:
    option = field.option
    # Typer would offer `--no-strict` for a switch whose spelling it makes itself.
    spelled = option.spelled or ((field.spelling,) if field.type is bool else ())
    shown = typer.Option(
        *spelled,
        metavar=option.metavar,
        help=option.help,
        rich_help_panel=None if option.basic else MORE,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=field.default,
        annotation=Annotated[_said(field), shown],
    )


def _said(field: OptionField) -> Any:
    """The type of what the command line says."""
    if field.option.words is not None:
        said = field.option.words.type
    elif field.choices:
        said = str
    else:
        said = field.type
    return said | None if field.default is None else said
