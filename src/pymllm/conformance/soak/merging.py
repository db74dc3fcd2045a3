"""Several campaigns as one: their ledgers put together, and what all of them came to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pymllm.conformance.soak.campaign import SoakReport
from pymllm.conformance.soak.ledger import FILE, Ledger, merge_ledgers
from pymllm.conformance.soak.totals import Totals

__all__ = ["find_ledgers", "merge_campaigns"]


def find_ledgers(folders: Iterable[Path]) -> list[Path]:
    """Return the ledger of each campaign; one that is named itself stays what it is."""
    return [folder / FILE if folder.is_dir() else folder for folder in folders]


def merge_campaigns(folders: Sequence[Path], output: Path | None = None) -> SoakReport:
    """Put campaigns together.

    Parameters
    ----------
    folders : sequence of Path
        Of campaigns, or their ledgers.
    output : Path, optional
        A folder for one ledger with every run. Programs stay where they are.

    Raises
    ------
    FileExistsError
        There is a ledger in ``output``.
    TraceError, OSError
        A ledger cannot be read, or none can be written.
    """
    ledgers = find_ledgers(folders)
    headers, runs, conflicts = merge_ledgers(ledgers)
    if output is not None:
        if (output / FILE).exists():
            raise FileExistsError(output / FILE)
        with Ledger(output / FILE) as ledger:
            for header in headers:
                ledger.add(header)
            for run in runs:
                ledger.add(run)
    totals = Totals(headers)
    for run in sorted(runs, key=lambda run: (run.memory.process, run.memory.operations)):
        totals.add(run)
    return SoakReport(
        tuple(headers),
        totals,
        totals.memory.estimate(),
        folder=output,
        conflicts=tuple(conflicts),
        parts=tuple(ledger.parent for ledger in ledgers),
    )
