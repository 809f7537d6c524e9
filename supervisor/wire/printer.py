"""The only way to a terminal for text that may be foreign: from trainers, engines, kernels, persons, other machines.

Nothing in it acts as markup, an emoji name, or a terminal command (`supervisor.core.report.visible`). `ruff` bans the other
ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType  # noqa: TID251 - here alone
from rich.segment import Segment
from rich.text import Text

from supervisor.core.report.visible import visible


class Printer(Console):
    """A console that shows every text literally. Colours come from styles alone."""

    def __init__(
        self, *, stderr: bool = False, soft_wrap: bool = False, width: int | None = None, file: IO[str] | None = None
    ) -> None:
        # No highlighter either: its patterns take quadratic time for a long word.
        super().__init__(
            stderr=stderr, soft_wrap=soft_wrap, width=width, file=file, markup=False, emoji=False, highlight=False
        )

    def render_str(self, text: str, **how: Any) -> Text:
        """Makes text visible before it is measured: in a table's cell each sign needs its room."""
        return super().render_str(visible(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def print_line(text: object, err: bool = False) -> None:
    """Prints a line, or lines."""
    typer.echo(visible(str(text)), err=err)  # noqa: TID251 - here alone


def print_block(text: str, err: bool = False) -> None:
    """Prints a part of a text that is too long for memory."""
    typer.echo(visible(text), nl=False, err=err)  # noqa: TID251 - here alone
