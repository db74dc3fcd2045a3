"""``pymllm faults``: do the searches bite? The search is in `pymllm.faults.hunt`."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pymllm.cli import options
from pymllm.cli.faults_page import cells_of, kept_of, make_page
from pymllm.cli.output import say
from pymllm.cli.shard_table import complain_of_others
from pymllm.cli.spread import read_spread_to, spread_tasks, work_options
from pymllm.cli.store import keep_run, refuse_own_input, save_text
from pymllm.cli.tables import draw, make_legend, make_table, progress_bar, tell
from pymllm.documents.faults import FaultsDocument
from pymllm.errors import UsageError
from pymllm.report.quantities import count_of
from pymllm.text_file import cut
from pymllm.torch_extra import require_torch

if TYPE_CHECKING:
    from pymllm.faults.detection import FaultResult, HuntPlan, HuntTask
    from pymllm.faults.fault import Fault
    from pymllm.work.kept import KeptResults
    from pymllm.work.shards import Shard

_FULL_SEEDS = 5
_SHRINKS = 300


@click.command("faults", short_help="Plant known faults and see each one caught.")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@options.cabinet(
    "Your own faults, a sequence of Fault; may be repeated. Without an ID, only these are planted. "
    "The default is this package's faults."
)
@click.option("--full", is_flag=True, help="Five seeds, and the smallest program for each fault.")
@click.option("--seed", type=options.SEED, default=0, help="The first seed.")
@work_options(keeps=True)
@options.json
@options.store
@click.option(
    "--page",
    type=options.OUTPUT_FILE,
    help="Also write a page of Markdown; rows of other faults in a page that is there stay.",
)
@click.option("--list", "only_list", is_flag=True, help="List the faults with the laws that may catch each.")
@options.progress
def faults_command(
    ids: tuple[str, ...],
    cabinets: tuple[str, ...],
    full: bool,
    seed: int,
    shard: Shard | None,
    jobs: int,
    as_json: bool,
    store: Path | None,
    page: Path | None,
    keep: Path | None,
    only_list: bool,
    progress: str,
) -> int:
    """Put known faults in place, one at a time, and search for each until it breaks a law.

    ID names a fault, as --list shows them; by default all are planted. One seed is searched, up to the first
    violation; --full takes the median of five seeds and makes the programs small. With --shard and --keep,
    several machines search for a part of the faults each; --keep with all their lines in one file prints the
    whole table. With --executor and --keep, an engine's machines do so.

    Ends with 0 if every fault was caught by a law listed for it, with 1 if one was not, and with 2 for bad
    input. docs/verify.md explains the table.
    """
    if only_list:
        without = ("as_json", "store", "page", "keep", "executor")
        options.refuse_typed(without, "--list looks for no fault, so there is no result")
    spread = read_spread_to(keep)
    shard = None if spread is not None else shard  # which may be of the environment
    refuse_own_input("--page", page, *([] if keep is None else [keep]))
    require_torch("pymllm faults")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
    chosen = choose_faults(ids, cabinets)
    if shard is not None:
        if shard.count > len(chosen):
            amount = count_of(len(chosen), "fault")
            raise click.UsageError(f"{shard.asked}: of {amount}; take at most so many shards.")
        chosen = tuple(shard.keep(chosen))
    if only_list:
        options.tell_shard_of_environment(shard)
        say("\n".join(_lines(chosen)))
        return 0
    from pymllm.faults.detection import HuntPlan
    from pymllm.faults.hunt import keep_results, source_of

    plan = HuntPlan((seed,))
    if full:
        plan = HuntPlan(tuple(range(seed, seed + _FULL_SEEDS)), shrinks=_SHRINKS)
    if spread is not None and keep is not None:
        spread_tasks(spread, keep, source_of(chosen, plan), lambda: len(chosen), jobs, progress)
    with options.refusing():
        kept = None if keep is None else keep_results(keep)
    complain_of_others(kept)
    options.tell_shard_of_environment(shard)
    return look_and_tell(chosen, plan, jobs, progress, as_json, store, page, kept)


def look_and_tell(
    chosen: Sequence[Fault],
    plan: HuntPlan,
    jobs: int,
    progress: str,
    as_json: bool,
    store: Path | None,
    page: Path | None = None,
    kept: KeptResults[HuntTask, FaultResult] | None = None,
    hunter: Callable[[HuntTask], FaultResult] | None = None,
) -> int:
    """Look for faults, and say what became of them; the exit status."""
    from pymllm.faults.hunt import look_for_faults

    report = look_for_faults(chosen, plan, jobs, partial(progress_bar, progress, unit=""), kept, hunter)
    document = report.document()
    if page is not None and report.interruption is None:
        earlier = page.read_text(encoding="utf-8") if page.is_file() else ""
        save_text(make_page(document, datetime.now(tz=UTC).date(), earlier), page, "--page")
    keep_run(store, document)
    return tell(document, make_text, as_json, report.interruption)


def refuse_beside_faults(*names: str) -> None:
    """Refuse options of a command that mean nothing while faults are looked for."""
    options.refuse_typed(names, "--cabinet and --fault print the table of faults only")


def choose_faults(
    ids: Sequence[str], cabinets: Sequence[str], adapters: Sequence[str] = ()
) -> tuple[Fault, ...]:
    """Return the faults that the options name, of these adapters only where any are named; or refuse."""
    from pymllm.faults.table import find_faults, join_cabinets, own_cabinet

    if cabinets and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with options.refusing():
        others = [_load(place) for place in cabinets]
        cabinet = join_cabinets([own_cabinet(), *others] if ids or not cabinets else others)
        chosen = find_faults(ids, cabinet)
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
    from pymllm.faults.table import load_cabinet
    from pymllm.work.workers import Lost, ask

    faults = ask(load_cabinet, place)
    if isinstance(faults, Lost):
        raise UsageError(f"cannot import {place.partition(':')[0]}: {faults.message}")
    return faults


def _lines(faults: Sequence[Fault]) -> list[str]:
    from pymllm.faults.table import bug_of

    width = max(len(fault.id) for fault in faults)
    laws = max(len(", ".join(fault.laws)) for fault in faults)
    bugs = [bug_of(fault) for fault in faults]
    sources = ["" if bug is None else f" ({bug.engine}: {bug.links[0]})" for bug in bugs]
    return [
        f"{fault.id:{width}}  {', '.join(fault.laws):{laws}}  {fault.title}{source}"
        for fault, source in zip(faults, sources, strict=True)
    ]


# -- as text -----------------------------------------------------------------------------------------------


def make_text(document: FaultsDocument) -> str:
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
    legend = {
        "caught": "yes: a law of the fault's list was violated; BY ANOTHER LAW: only another one",
        "by the": "way of searching; machine: random programs, sweep: each call fails in turn",
        "operations": "until it was caught",
        "program": "operations of the smallest program that shows the fault",
    }
    if columns[-1] != "program":
        del legend["program"]
    return draw(table, *lines, "", make_legend(legend), "", _sum_up(document), fits_terminal=True)


def _sum_up(document: FaultsDocument) -> str:
    seen = Counter(row.detections[0].searcher for row in document.faults if row.detections)
    by = ", ".join(f"{count} by the {name}" for name, count in seen.most_common())
    found = f" ({by})" if by else ""
    ended = f"{document.seconds:.1f} s{kept_of(document)}"
    return f"{document.caught} of {len(document.faults)} faults caught by a listed law{found}; {ended}"
