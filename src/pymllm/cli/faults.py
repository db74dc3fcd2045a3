"""``pymllm faults``: do the searches bite? The search is in `pymllm.conformance.faults_run`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pymllm.cli.options import count_processes, jobs_option, json_option, progress_option
from pymllm.cli.program import say
from pymllm.cli.run_store import keep_run, refuse_missing_folder, refuse_unwritable_store, store_option
from pymllm.errors import UsageError
from pymllm.text_file import write_text_file

if TYPE_CHECKING:
    from pymllm.adapters.cabinet.fault import Fault
    from pymllm.conformance.detection import HuntPlan
    from pymllm.conformance.faults_run import FaultsReport
    from pymllm.conformance.kept_results import KeptResults

__all__ = ["faults_command"]

_FULL_SEEDS = 5
_SHRINKS = 300


@click.command("faults", short_help="Plant known faults and see each one caught.")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--cabinet",
    "cabinets",
    metavar="MODULE:TABLE",
    multiple=True,
    show_default="the faults of this package",
    help="Somebody's faults, a sequence of Fault; may be repeated. Without an ID only these are planted.",
)
@click.option("--full", is_flag=True, help="Five seeds, and the smallest program for each fault.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    default=0,
    show_default=True,
    help="The first seed.",
)
@jobs_option
@json_option
@store_option
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page of Markdown, too; where there is one, its rows of other faults stay.",
)
@click.option(
    "--keep",
    type=click.Path(dir_okay=False, path_type=Path),
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
    refuse_unwritable_store(store)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
    chosen = _choose(ids, cabinets)
    if only_list:
        say("\n".join(_lines(chosen)))
        return 0
    from pymllm.cli.progress import progress_bar
    from pymllm.conformance.faults_run import look_for_faults

    def show(label: str, total: int) -> AbstractContextManager[Callable[[int], None] | None]:
        return progress_bar(progress, label, total, unit="")

    kept = None if keep is None else _open(keep)
    report = look_for_faults(chosen, _plan(full, seed), count_processes(jobs), show, kept)
    from pymllm.cli.faults_document import make_document
    from pymllm.cli.faults_table import make_text

    if page is not None and report.interruption is None:
        _print(report, page)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    document = make_document(report)
    keep_run(store, document)
    say(json.dumps(document, indent=2) if as_json else make_text(report, width))
    if report.interruption is not None:
        raise report.interruption
    return report.exit_status


def _refuse_beside_list(options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value:
            raise click.UsageError(
                f"{name}: --list looks for no fault, so there is no result; leave it away."
            )


def _choose(ids: Sequence[str], cabinets: Sequence[str]) -> tuple[Fault, ...]:
    from pymllm.adapters.cabinet.table import find_faults, join_cabinets, load_cabinet, own_cabinet

    if cabinets and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        others = [load_cabinet(place) for place in cabinets]
        cabinet = join_cabinets([own_cabinet(), *others] if ids or not cabinets else others)
        return find_faults(ids, cabinet)
    except UsageError as error:
        raise click.UsageError(f"{error}.") from error


def _open(path: Path) -> KeptResults:
    from pymllm.conformance.kept_results import KeptResults

    try:
        return KeptResults(path)
    except UsageError as error:
        raise click.UsageError(f"{error}.") from error


def _print(report: FaultsReport, page: Path) -> None:
    from pymllm.cli.faults_page import make_page

    earlier = page.read_text(encoding="utf-8") if page.is_file() else ""
    write_text_file(page, make_page(report, datetime.now(tz=UTC).date(), earlier))


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
