"""The help of `run`: what a first run needs, and with `--help-all` every option."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mmcalib.cli.command import MORE, OnceEach


class RunHelp(OnceEach):
    """Leaves out options of the panel `MORE` until `--help-all` asks for them."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Options": [], MORE: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panels[getattr(parameter, "rich_help_panel", None) or "Options"].append(record)
        for heading, lines in panels.items():
            if heading != MORE or ctx.meta.get(MORE):
                with formatter.section(heading):
                    formatter.write_dl(lines)


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[MORE] = True
        print(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show every option."),
]
