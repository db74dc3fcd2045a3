"""The table of results: ours, best peer, limit and target, a line for each scenario, plain ASCII."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pymllm.instrument.peer_comparison import OURS, Contender, ScenarioRow, is_ours

HEAD = ("scenario", "ours", "keys", "best peer", "", "limit", "target", "", "ours / best peer", "", "others")
RIGHT = (1, 3, 5, 6)


def make_line(row: ScenarioRow) -> tuple[str, ...]:
    """Write the line of one scenario."""
    values = {one.contender: one.value for one in row.standings}
    ours = [one for one in row.standings if is_ours(one)]
    peer = number(values[row.best_peer]) if row.best_peer else "-"
    if row.ratio is None:
        ratio = "no peer here"
    else:
        ratio = f"{row.ratio.value:.2f}  ({row.ratio.low:.2f} .. {row.ratio.high:.2f})"
    return (
        row.id,
        f"{number(values[OURS])} {row.unit}",
        row.keys,
        peer,
        row.best_peer or "",
        number(row.limit),
        number(row.target),
        "reached" if row.reached else "missed",
        ratio,
        row.verdict if row.ratio else "",
        ", ".join(f"{one.contender[len(OURS) + 1 :]} {number(one.value)}" for one in ours[1:]),
    )


def make_table(rows: Iterable[ScenarioRow]) -> str:
    """Write the lines of all scenarios."""
    lines = [HEAD, *map(make_line, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "".join(f"{join(line, widths)}\n" for line in lines)


def make_markdown(rows: Sequence[ScenarioRow]) -> str:
    """Write the table for a page, with a description of each scenario."""
    head = (
        "scenario",
        "timed operation",
        "ours",
        "others",
        "best peer",
        "limit",
        "target",
        "ours / best peer",
    )
    lines = [f"| {' | '.join(head)} |", "| --- | --- | ---: | --- | ---: | ---: | ---: | --- |"]
    for row in rows:
        id, ours, keys, peer, name, limit, target, reached, ratio, verdict, others = make_line(row)
        cells = (id, row.title, f"{keys} {ours}".strip(), others, f"{name} {peer}".strip(), limit)
        told = f"{target}, {reached}", f"{ratio}, {verdict}".rstrip(", ")
        lines.append(f"| {' | '.join((*cells, *told))} |")
    return "\n".join(lines) + "\n"


def make_absences(contenders: Iterable[Contender]) -> str:
    """Name the contenders that could not take part, with the reasons."""
    return "".join(f"not here: {one.name}: {one.reason}\n" for one in contenders if one.reason)


def join(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = (
        cell.rjust(width) if column in RIGHT else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    )
    return "  ".join(cells).rstrip()


def number(value: float) -> str:
    """Write a number with three significant digits, and at most one decimal of a large one."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 10 else f"{value:.1f}"
