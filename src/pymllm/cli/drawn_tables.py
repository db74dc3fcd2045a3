"""Where tables are drawn before they are printed, in as many columns as there are."""

from __future__ import annotations

import io

from rich.console import Console

__all__ = ["table_console"]

_ENOUGH = 10_000  # A table is only as wide as its contents, so this is no width at all.


def table_console(width: int | None = None, *, styled: bool = False) -> Console:
    """Make a console that prints nowhere: what it draws is taken with ``capture``.

    Parameters
    ----------
    width : int or None
        Columns of a terminal; ``None`` for as many as the tables need.
    styled : bool
        Whether bold is written as a terminal's, and not left out.
    """
    return Console(
        file=io.StringIO(),
        width=width or _ENOUGH,
        force_terminal=styled,
        highlight=False,
        markup=False,
        emoji=False,
    )
