"""``pymllm faults``: do the searches bite? The search is in `pymllm.conformance.faults_run`."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pymllm.cli.options import (
    OUTPUT_FILE,
    SEED,
    cabinet_option,
    count_processes,
    jobs_option,
    json_option,
    progress_option,
    store_option,
)
from pymllm.cli.program import say
from pymllm.cli.store import keep_run, refuse_missing_folder, refuse_own_input, refuse_unwritable_store
from pymllm.cli.tables import draw, make_table, progress_bar, say_document, terminal_width
from pymllm.conformance.documents import FaultRow, FaultsDocument
from pymllm.errors import UsageError
from pymllm.text_file import cut, write_text_file
from pymllm.torch_extra import require_torch

if TYPE_CHECKING:
    from pymllm.adapters.cabinet.fault import Fault
    from pymllm.conformance.detection import FaultResult, HuntPlan, HuntTask
    from pymllm.conformance.faults_run import KeptResults

_FULL_SEEDS = 5
_SHRINKS = 300


@click.command("faults", short_help="Plant known faults and see each one caught.")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@cabinet_option(
    "Somebody's faults, a sequence of Fault; may be repeated. Without an ID only these are planted. "
    "By default there are those of this package."
)
@click.option("--full", is_flag=True, help="Five seeds, and the smallest program for each fault.")
@click.option("--seed", type=SEED, metavar="N", default=0, show_default=True, help="The first seed.")
@jobs_option
@json_option
@store_option
@click.option(
    "--page",
    type=OUTPUT_FILE,
    metavar="FILE",
    help="Write a page of Markdown, too; where there is one, its rows of other faults stay.",
)
@click.option(
    "--keep",
    type=OUTPUT_FILE,
    metavar="FILE",
    help="Keep each result there at once; what is there is not looked for again.",
)
@click.option("--list", "only_list", is_flag=True, help="List the faults with the laws that may catch each.")
@progress_option
def faults_command(
    ids: tuple[str, ...],
    cabinets: tuple[str, ...],
    full: bool,
    seed: int,
    jobs: int | None,
    as_json: bool,
    store: Path | None,
    page: Path | None,
    keep: Path | None,
    only_list: bool,
    progress: str,
) -> int:
    """Put known faults in place, one at a time, and see each one caught by a law written down beforehand.

    ID names a fault of the cabinet; by default all are planted. The quick form looks from one seed and stops
    at the first violation; --full takes the median of five seeds and makes the programs small.

    Ends with 0 where every fault was caught by a law of its list, with 1 where one was not, and with 2 for
    bad input. docs/verify.md explains the table.
    """
    if only_list:
        _refuse_beside_list({"--json": as_json, "--store": store, "--page": page, "--keep": keep})
    for name, path in (("--page", page), ("--keep", keep)):
        refuse_missing_folder(name, path)
    refuse_own_input("--page", page, *([] if keep is None else [keep]))
    refuse_unwritable_store(store)
    require_torch("pymllm faults")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
    chosen = choose_faults(ids, cabinets)
    if only_list:
        say("\n".join(_lines(chosen)))
        return 0
    kept = None if keep is None else _open(keep)
    return look_and_tell(chosen, _plan(full, seed), jobs, progress, as_json, store, page, kept)


def look_and_tell(
    chosen: Sequence[Fault],
    plan: HuntPlan,
    jobs: int | None,
    progress: str,
    as_json: bool,
    store: Path | None,
    page: Path | None = None,
    kept: KeptResults | None = None,
    hunter: Callable[[HuntTask], FaultResult] | None = None,
) -> int:
    """Look for faults, and say what became of them; the exit status."""
    from pymllm.conformance.faults_run import look_for_faults

    def show(label: str, total: int) -> AbstractContextManager[Callable[[int], None] | None]:
        return progress_bar(progress, label, total, unit="")

    report = look_for_faults(chosen, plan, count_processes(jobs), show, kept, hunter)
    document = report.document()
    if page is not None and report.interruption is None:
        from pymllm.cli.faults_page import make_page

        earlier = page.read_text(encoding="utf-8") if page.is_file() else ""
        write_text_file(page, make_page(document, datetime.now(tz=UTC).date(), earlier))
    keep_run(store, document)
    if as_json:
        say_document(document)
    else:
        say(make_text(document, terminal_width()))
    if report.interruption is not None:
        raise report.interruption
    return document.exit_status


def refuse_beside_faults(options: Mapping[str, object]) -> None:
    """Refuse options of a command that mean nothing while faults are looked for."""
    for name, value in options.items():
        if value:
            raise click.UsageError(
                f"{name}: with --cabinet or --fault only faults are told of; leave it away."
            )


def _refuse_beside_list(options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value:
            raise click.UsageError(
                f"{name}: --list looks for no fault, so there is no result; leave it away."
            )


def choose_faults(
    ids: Sequence[str], cabinets: Sequence[str], adapters: Sequence[str] = ()
) -> tuple[Fault, ...]:
    """Return the faults that the options name, of these adapters only where any are named; or refuse."""
    from pymllm.adapters.cabinet.table import find_faults, join_cabinets, own_cabinet

    if cabinets and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        others = [_load(place) for place in cabinets]
        cabinet = join_cabinets([own_cabinet(), *others] if ids or not cabinets else others)
        chosen = find_faults(ids, cabinet)
    except UsageError as error:
        raise click.UsageError(f"{error}.") from error
    if not adapters:
        return chosen
    named = set(adapters)
    own = [
        replace(fault, adapters=tuple(name for name in fault.adapters if name in named))
        for fault in chosen
        if named.intersection(fault.adapters)
    ]
    if not own:
        raise click.UsageError(
            f"none of {len(chosen)} faults is about {', '.join(map(cut, adapters))}; "
            f"they are about {', '.join(dict.fromkeys(name for it in chosen for name in it.adapters))}."
        )
    return tuple(own)


def _load(place: str) -> tuple[Fault, ...]:
    """Read somebody's table in a process beside this one: its module may do anything when it is imported."""
    from pymllm.adapters.cabinet.table import load_cabinet
    from pymllm.conformance.workers import Lost, ask

    faults = ask(load_cabinet, place)
    if isinstance(faults, Lost):
        raise UsageError(f"cannot import {place.partition(':')[0]}: {faults.message}")
    return faults


def _open(path: Path) -> KeptResults:
    from pymllm.conformance.faults_run import KeptResults

    try:
        return KeptResults(path)
    except UsageError as error:
        raise click.UsageError(f"{error}.") from error


def _lines(faults: Sequence[Fault]) -> list[str]:
    width = max(len(fault.id) for fault in faults)
    laws = max(len(", ".join(fault.laws)) for fault in faults)
    return [
        f"{fault.id:{width}}  {', '.join(fault.laws):{laws}}  {fault.title}{_source(fault)}"
        for fault in faults
    ]


def _source(fault: Fault) -> str:
    from pymllm.adapters.cabinet.bugs import bug_of

    bug = bug_of(fault)
    return "" if bug is None else f" ({bug.engine}: {bug.links[0]})"


def _plan(full: bool, seed: int) -> HuntPlan:
    from pymllm.conformance.detection import HuntPlan

    if full:
        return HuntPlan(tuple(range(seed, seed + _FULL_SEEDS)), shrinks=_SHRINKS)
    return HuntPlan((seed,))


# -- as text -----------------------------------------------------------------------------------------------


def make_text(document: FaultsDocument, width: int | None = None) -> str:
    """Lay a run out as text: first what was not caught as it should be."""
    columns = ["id", "fault", "caught", "law", "by the", "operations", "seconds"]
    columns += ["program"] if any(row.program is not None for row in document.faults) else []
    table = make_table(*columns, right=("operations", "seconds", "program"), gap=2)
    for row in sorted(document.faults, key=lambda row: row.caught):
        table.add_row(*cells_of(row)[: len(columns)])
    lines: list[str] = []
    for row in document.faults:
        if not row.caught:
            lines += ["", f"{row.id} {row.title}", *(f"  {problem}" for problem in row.problems)]
            lines += [
                f"  seed {it.seed}: {it.law} by the {it.searcher} on {it.adapter}: {it.message}; "
                f"its laws are {', '.join(row.laws)}"
                for it in row.detections
                if it.law in row.unlisted
            ]
    return draw(table, *lines, "", _sum_up(document), width=width)


def cells_of(row: FaultRow) -> list[str]:
    """Return a row of the table."""
    found = bool(row.detections)
    return [
        row.id,
        row.title,
        "yes" if row.caught else "BY ANOTHER LAW" if found and not row.problems else "NO",
        ", ".join(dict.fromkeys(it.law for it in row.detections)),
        ", ".join(dict.fromkeys(it.searcher for it in row.detections)),
        "" if row.operations is None else f"{row.operations:,.0f}",
        "" if row.seconds is None else f"{row.seconds:.2f}",
        "" if row.program is None else str(row.program),
    ]


def _sum_up(document: FaultsDocument) -> str:
    seen = Counter(row.detections[0].searcher for row in document.faults if row.detections)
    by = ", ".join(f"{count} by the {name}" for name, count in seen.most_common())
    found = f" ({by})" if by else ""
    kept = f" without {document.kept} that were known" if document.kept else ""
    total = len(document.faults)
    ended = f"{document.seconds:.1f} s{kept}"
    return f"{document.caught} of {total} faults caught by a law of their list{found}; {ended}"
