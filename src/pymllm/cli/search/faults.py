"""The command ``pymllm faults``, which tests whether searches find planted faults (`pymllm.faults.hunt`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from pymllm.cli import options
from pymllm.cli.output import say
from pymllm.cli.search.faults_page import make_page
from pymllm.cli.search.verify import plan_search, verify_command
from pymllm.cli.servers.serve import why_no_servers
from pymllm.cli.shard_table import complain_of_others
from pymllm.cli.soak.soak import soak_command
from pymllm.cli.soak.soak_options import SoakOptions
from pymllm.cli.spread import Executor, demand_keep, shard_beside, spread_tasks, work_options
from pymllm.cli.store import keep_run, refuse_own_input, save_text
from pymllm.cli.tables import draw_document, progress_bar, tell
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


_ids = click.argument("ids", metavar="[ID]...", nargs=-1)
_cabinet = click.option(
    "--cabinet",
    "cabinets",
    metavar="MODULE:TABLE",
    multiple=True,
    help="Your own faults, a sequence of Fault; may be repeated. Without an ID, only these are planted. "
    "The default is this package's faults.",
)


_page = click.option(
    "--page",
    type=options.OUTPUT_FILE,
    help="Also write a page of Markdown; rows of other faults in a page that is there stay.",
)


@click.group("faults", short_help="Plant known faults, and check that each is caught.")
def faults_command() -> None:
    """Plant known faults, one at a time, and check that a search catches each.

    ID names a fault, as shown by `pymllm faults list`; the default is all. docs/verify.md explains
    the table.
    """


@faults_command.command("list", short_help="List faults, with the laws that may catch each.")
@_ids
@_cabinet
@options.shard
def list_command(ids: tuple[str, ...], cabinets: tuple[str, ...], shard: Shard | None) -> None:
    """List faults, with the laws that may catch each and where the bug was seen."""
    require_torch("pymllm faults list")
    chosen = _part_of(choose_faults(ids, cabinets, with_servers=True), shard)
    options.tell_shard_of_environment(shard)
    say("\n".join(_lines(chosen)))


@faults_command.command("hunt", short_help="Look for each fault with the searchers made for faults.")
@_ids
@_cabinet
@click.option("--full", is_flag=True, help="Five seeds, and the smallest program for each fault.")
@click.option("--seed", type=options.SEED, default=0, help="The first seed.")
@work_options
@options.json
@options.store
@_page
@options.progress
def hunt_command(
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
    executor: Executor | None,
    progress: str,
) -> int:
    """Put faults in place, one at a time, and search for each until it breaks a law.

    One seed is searched, up to the first violation; --full takes the median of five seeds and makes the
    programs small. With --shard and --keep, several machines search for a part of the faults each; --keep
    with all their lines in one file prints the whole table. With --executor and --keep, an engine's
    machines do so.

    Ends with 0 if every fault was caught by a law listed for it, with 1 if one was not, and with 2 for bad
    input.
    """
    demand_keep(executor, keep)
    shard = shard_beside(executor, shard)
    refuse_own_input("--page", page, *([] if keep is None else [keep]))
    require_torch("pymllm faults hunt")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
    chosen = _part_of(choose_faults(ids, cabinets), shard)
    from pymllm.faults.detection import HuntPlan
    from pymllm.faults.hunt import keep_results, source_of

    plan = HuntPlan((seed,))
    if full:
        plan = HuntPlan(tuple(range(seed, seed + _FULL_SEEDS)), shrinks=_SHRINKS)
    if executor is not None and keep is not None:
        spread_tasks(executor, keep, source_of(chosen, plan), lambda: len(chosen), jobs, progress)
    with options.refusing():
        kept = None if keep is None else keep_results(keep)
    complain_of_others(kept)
    options.tell_shard_of_environment(shard)
    return look_and_tell(chosen, plan, jobs, progress, as_json, store, page, kept)


def _part_of(faults: Sequence[Fault], shard: Shard | None) -> Sequence[Fault]:
    """Return a shard's part of some faults; refuse more shards than faults."""
    if shard is None:
        return faults
    if shard.count > len(faults):
        amount = count_of(len(faults), "fault")
        raise click.UsageError(f"{shard.asked}: of {amount}; take at most so many shards.")
    return tuple(shard.keep(faults))


@faults_command.command("verify", short_help="See whether `pymllm verify` catches each fault.")
@_ids
@_cabinet
@options.of(verify_command, "adapters", "commands", "laws", "profile", "seed", "examples", "jobs", "timeout")
@options.json
@options.store
@options.progress
def verify_faults_command(
    ids: tuple[str, ...],
    cabinets: tuple[str, ...],
    adapters: tuple[str, ...],
    commands: tuple[str, ...],
    as_json: bool,
    store: Path | None,
    progress: str,
    **chosen: Any,
) -> int:
    """Put faults in place, one at a time, and search the adapters of each as `pymllm verify` would.

    With --adapter, only faults of these adapters are planted. Exit status: as of `pymllm faults hunt`.
    """
    require_torch("pymllm faults verify")
    names = options.names_of(adapters, commands)
    plan = plan_search(names, **chosen)
    from pymllm.faults.detection import HuntPlan
    from pymllm.faults.hunt import hunt_by_verify

    planted = choose_faults(ids, cabinets, names)
    hunt, hunter = HuntPlan((plan.seed,), shrinks=plan.profile.shrinks), partial(hunt_by_verify, plan)
    return look_and_tell(planted, hunt, plan.jobs, progress, as_json, store, hunter=hunter)


@faults_command.command("soak", short_help="See whether a campaign of `pymllm soak` catches each fault.")
@_ids
@_cabinet
@options.of(soak_command, "adapters", "commands", "configs", "machine", "minutes", "operations", "longest")
@options.of(soak_command, "seed", "audit", "jobs", "timeout")
@options.json
@options.store
@options.progress
def soak_faults_command(
    ids: tuple[str, ...],
    cabinets: tuple[str, ...],
    adapters: tuple[str, ...],
    commands: tuple[str, ...],
    as_json: bool,
    store: Path | None,
    progress: str,
    **chosen: Any,
) -> int:
    """Put faults in place, one at a time, and play a campaign on the adapters of each until a run fails.

    --minutes and --operations count for each fault; no ledger is kept. With --adapter, only faults of these
    adapters are planted. Exit status: as of `pymllm faults hunt`.
    """
    asked = SoakOptions(options.names_of(adapters, commands), **chosen)
    asked.check()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
    require_torch("pymllm faults soak")
    planted = choose_faults(ids, cabinets, asked.adapters)
    from pymllm.faults.detection import HuntPlan
    from pymllm.faults.hunt import hunt_by_soak

    with TemporaryDirectory() as folder:  # nothing is in the way of a campaign whose ledger nobody keeps
        plan, _ = replace(asked, output=Path(folder)).settle()
    # A campaign makes small what it finds, by limits of its own; above 0 the table has a column for it.
    hunt, hunter = HuntPlan((plan.seed,), shrinks=1), partial(hunt_by_soak, plan)
    return look_and_tell(planted, hunt, asked.jobs, progress, as_json, store, hunter=hunter)


@faults_command.command("probe", short_help="See whether `pymllm probe` catches each fault of a server.")
@_ids
@click.option("--full", is_flag=True, help="Five seeds, and the smallest program for each fault.")
@click.option("--seed", type=options.SEED, default=0, help="The first seed.")
@click.option(
    "--requests",
    type=options.whole(1, 100_000),
    default=60,
    help="Most requests of each probe; a fault that needs more has more.",
)
@options.shard
@options.jobs
@options.json
@options.store
@_page
@options.progress
def probe_faults_command(
    ids: tuple[str, ...],
    full: bool,
    seed: int,
    requests: int,
    shard: Shard | None,
    jobs: int,
    as_json: bool,
    store: Path | None,
    page: Path | None,
    progress: str,
) -> int:
    """Put faults into the server of `pymllm serve`, one at a time, and probe it as `pymllm probe` would.

    A probe continues until a law is broken or its requests are made. Exit status: as of `pymllm faults hunt`.
    """
    reason = why_no_servers()
    if reason is not None:
        raise click.UsageError(f"pymllm faults probe: {reason}.")
    refuse_own_input("--page", page)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
    from pymllm.faults.detection import HuntPlan
    from pymllm.faults.servers import hunt_by_probe
    from pymllm.faults.table import SERVERS, find_faults
    from pymllm.probing.search import ProbePlan

    with options.refusing():
        chosen = _part_of(find_faults(ids, SERVERS), shard)
    options.tell_shard_of_environment(shard)
    seeds = tuple(range(seed, seed + (_FULL_SEEDS if full else 1)))
    plan, hunter = HuntPlan(seeds, shrinks=int(full)), partial(hunt_by_probe, ProbePlan(requests=requests))
    return look_and_tell(chosen, plan, jobs, progress, as_json, store, page, hunter=hunter)


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
    """Search for faults, print each result, and return the exit status."""
    from pymllm.faults.hunt import look_for_faults

    report = look_for_faults(chosen, plan, jobs, partial(progress_bar, progress, unit=""), kept, hunter)
    document = report.document()
    if page is not None and report.interruption is None:
        earlier = page.read_text(encoding="utf-8") if page.is_file() else ""
        save_text(make_page(document, datetime.now(tz=UTC).date(), earlier), page, "--page")
    keep_run(store, document)
    return tell(document, draw_document, as_json, report.interruption)


def choose_faults(
    ids: Sequence[str],
    cabinets: Sequence[str],
    adapters: Sequence[str] = (),
    *,
    with_servers: bool = False,
) -> tuple[Fault, ...]:
    """Return the faults that the options name, limited to named adapters; refuse unknown names."""
    from pymllm.faults.table import SERVERS, find_faults, join_cabinets, own_cabinet

    if cabinets and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with options.refusing():
        others = [_load(place) for place in cabinets]
        own = [own_cabinet(), *([SERVERS] if with_servers else [])]
        cabinet = join_cabinets([*own, *others] if ids or not cabinets else others)
        _refuse_servers(ids, cabinet)
        chosen = find_faults(ids, cabinet)
    if not adapters:
        return chosen
    named = set(adapters)
    about = [
        replace(fault, adapters=tuple(name for name in fault.adapters if name in named))
        for fault in chosen
        if named.intersection(fault.adapters)
    ]
    if not about:
        raise click.UsageError(
            f"none of {len(chosen)} faults is about {', '.join(map(cut, adapters))}; "
            f"they are about {', '.join(dict.fromkeys(name for it in chosen for name in it.adapters))}."
        )
    return tuple(about)


def _refuse_servers(ids: Sequence[str], cabinet: Sequence[Fault]) -> None:
    """Refuse a server's fault where only faults of classes can be used."""
    from pymllm.faults.table import SERVERS

    servers = {fault.id.lower(): fault.id for fault in SERVERS if fault not in cabinet}
    for id in ids:
        if id.lower() in servers:
            raise UsageError(f"{servers[id.lower()]} is a fault of a server; pymllm faults probe plants it")


def _load(place: str) -> tuple[Fault, ...]:
    """Read a table of faults in a separate process, since importing its module runs its code."""
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
