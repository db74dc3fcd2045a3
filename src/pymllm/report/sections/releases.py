"""The section of the laws that each release of a package breaks, from newest to oldest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from pymllm.documents.searches import LawRow, VerifyDocument
from pymllm.oracle.verdicts import Verdict
from pymllm.report.blocks import (
    BAD,
    GOOD,
    PALETTE,
    QUIET,
    Cell,
    Choice,
    Column,
    Panel,
    Part,
    Plot,
    Table,
    Text,
    Tile,
    anchor_of,
    make_table,
)
from pymllm.report.findings import SIGNS, TONES
from pymllm.report.loading import Run, documents_of, grouped
from pymllm.report.quantities import count_of

_COLOURS = (PALETTE[7], PALETTE[0], PALETTE[3], PALETTE[1])
"""The colours of verdicts: not claimed, holds, unknown and violated, without red against green."""
_CODES = (Verdict.NOT_CLAIMED, Verdict.HOLDS, Verdict.UNKNOWN, Verdict.VIOLATED)
_CELL_PIXELS = 26
_FRAME_PIXELS = 130


@dataclass(frozen=True, slots=True)
class _Line:
    """A law of one implementation over the releases of a package."""

    law: str
    sentence: str
    adapter: str
    rows: dict[str, LawRow]  # by release; those that were searched

    @property
    def is_broken(self) -> bool:
        return any(row.verdict is Verdict.VIOLATED for row in self.rows.values())


def make_releases_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of packages with releases that searches name: a picture and a table for each."""
    named = [it for it, _ in documents_of(runs, VerifyDocument) if it.release is not None]
    broken = 0
    for package, documents in grouped(named, _package_of).items():
        releases = sorted({_version_of(it) for it in documents}, key=_place, reverse=True)
        lines = _lines(documents)
        bad = [line for line in lines if line.is_broken]
        broken += len({release for line in bad for release, row in line.rows.items() if _is_bad(row)})
        searched = f"{count_of(len(releases), 'release')} of {package}"
        if not bad:
            yield Text(f"No search broke a law of {searched}.", GOOD)
            continue
        yield _plot(package, bad, releases)
        yield _table(f"{searched}: {len(bad)} of {len(lines)} laws broken by at least one", bad, releases)
    if named:
        count = len({(_package_of(it), _version_of(it)) for it in named})
        yield Tile(f"{broken:,} of {count:,}", "releases break a law", BAD if broken else GOOD)


def _package_of(document: VerifyDocument) -> str:
    assert document.release is not None
    return document.release.package


def _version_of(document: VerifyDocument) -> str:
    assert document.release is not None
    return document.release.version


def _place(release: str) -> tuple[bool, Version, str]:
    """Return the sort key of a release; an invalid version sorts as the oldest."""
    try:
        return True, Version(release), release
    except InvalidVersion:
        return False, Version("0"), release


def _is_bad(row: LawRow) -> bool:
    return row.verdict is Verdict.VIOLATED


def _lines(documents: Sequence[VerifyDocument]) -> list[_Line]:
    """Return every tested law of each implementation, from the newest search of each release."""
    found: dict[tuple[str, str], _Line] = {}
    for document in documents:
        for adapter in document.adapters:
            for row in adapter.laws:
                line = _Line(row.id, row.sentence, adapter.name, {})
                found.setdefault((row.id, adapter.name), line).rows[_version_of(document)] = row
    return sorted(found.values(), key=lambda it: (it.law[0], len(it.law), it.law, it.adapter))


def _plot(package: str, lines: Sequence[_Line], releases: Sequence[str]) -> Plot:
    """Return a plot of laws over releases, where a sign repeats the meaning of each colour."""
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": list(releases),
        "y": _names(lines),
        "z": [[_code(line.rows.get(release)) for release in releases] for line in lines],
        "text": [[_sign(line.rows.get(release)) for release in releases] for line in lines],
        "texttemplate": "%{text}",
        "textfont": {"color": "#ffffff"},
        "customdata": [[_words(line, release) for release in releases] for line in lines],
        "hovertemplate": "%{customdata}<extra></extra>",
        "hoverongaps": False,
        "zmin": 0,
        "zmax": len(_COLOURS),
        "colorscale": [
            [(place + end) / len(_COLOURS), colour] for place, colour in enumerate(_COLOURS) for end in (0, 1)
        ],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
    }
    layout = {
        "xaxis": {"type": "category", "side": "top", "ticks": "outside"},
        "yaxis": {"type": "category", "autorange": "reversed", "ticks": "outside"},
        "height": _FRAME_PIXELS + _CELL_PIXELS * len(lines),
    }
    return Plot(
        anchor_of("plot-releases", package),
        f"Laws that releases of {package} break",
        f"A place for each law and each release of {package}, newest on the left: violated, holds, unknown "
        "or not claimed. The table below has the same.",
        [Choice(package, [Panel([trace], layout)], "✗ violated, ✓ holds, ? unknown, - not claimed")],
    )


def _names(lines: Sequence[_Line]) -> list[str]:
    """Return the name of each line: its law, with the implementation if there are several."""
    adapters = {line.adapter: line.adapter.rsplit(":", 1)[-1] for line in lines}
    if len(adapters) == 1:
        return [line.law for line in lines]
    is_short_enough = len(set(adapters.values())) == len(adapters)
    return [f"{it.law} {adapters[it.adapter] if is_short_enough else it.adapter}" for it in lines]


def _code(row: LawRow | None) -> float | None:
    """Return the number of a verdict's colour, or ``None`` if the release was not searched."""
    return None if row is None else _CODES.index(row.verdict) + 0.5


def _sign(row: LawRow | None) -> str:
    return "" if row is None else SIGNS[row.verdict]


def _words(line: _Line, release: str) -> str:
    row = line.rows.get(release)
    return "" if row is None else f"{release}: {line.law} {row.verdict.value}, {line.adapter}"


def _table(caption: str, lines: Sequence[_Line], releases: Sequence[str]) -> Table:
    columns = [
        Column("law", lambda it: it.law),
        Column("implementation", lambda it: it.adapter),
        Column("demands that", lambda it: it.sentence),
        *map(_column, releases),
    ]
    return make_table(caption, lines, columns)


def _column(release: str) -> Column:
    return Column(release, lambda it: _cell(it.rows.get(release)), is_number=True)


def _cell(row: LawRow | None) -> Cell:
    if row is None:
        return Cell("not searched", QUIET)
    tests = f" {row.tests:,}" if row.verdict is Verdict.HOLDS else ""
    word = "" if row.verdict is Verdict.HOLDS else f" {row.verdict.value}"
    return Cell(f"{SIGNS[row.verdict]}{tests}{word}", TONES[row.verdict])
