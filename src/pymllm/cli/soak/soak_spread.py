"""``pymllm soak --executor``: a campaign whose shards are played wherever an engine has room."""

from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pymllm.cli import options
from pymllm.cli.output import complain
from pymllm.cli.soak.soak_options import LONGEST, SoakOptions
from pymllm.cli.tables import BETWEEN_LINES, paced, shows_progress, time_of
from pymllm.errors import UsageError
from pymllm.report.quantities import count_of
from pymllm.soak.spread.plan import MOST, STOP, ShardPlan, read_plan, write_plan
from pymllm.text_file import read_text_file

if TYPE_CHECKING:
    from pymllm.soak.results import SoakReport
    from pymllm.soak.spread.engines import Engine
    from pymllm.soak.spread.spread import Progress, Spread

_FEW = 4  # shards for each worker, so that a slow one holds up little
_UNKNOWN = 16  # shards, where an engine does not say how many workers it has
ENGINE_LOG = "engine.log"
"""What an engine prints while it plays a campaign, in the campaign's folder."""
_NAMED = 10  # shards that are named one by one
_BETWEEN_DRAWS = 0.5  # seconds
_CORPUS_LIMIT = 2**22  # bytes


@dataclass(frozen=True, slots=True)
class Executor:
    """The value of ``--executor``: an engine, and how shards go out to it."""

    name: str
    shards: int | None = None
    retries: int | None = None


_SETTINGS = {
    "shards": (options.whole(1, MOST), "shards: how many, by default a few for each worker"),
    "retries": (
        options.whole(0, 100),
        "retries: how often a shard is tried again that was lost with its worker, by default 3",
    ),
}


def executor_option(*settings: str) -> Callable[[Any], Any]:
    """Return the option for an engine that plays the shards of a campaign, with some settings."""
    readers = {key: _SETTINGS[key][0] for key in settings}

    def executor(value: object) -> Executor:
        name, given = options.read_settings(str(value), readers)
        return Executor(name, **given)

    return click.option(
        "--executor",
        type=executor,
        metavar=f"ENGINE{''.join(f'[,{key}=N]' for key in settings)}",
        help="Play in shards on many machines: ray[:ADDRESS], dask:ADDRESS, slurm[:PARTITION], or "
        "module:factory, which makes a concurrent.futures.Executor. --minutes then count for each shard, "
        "and --jobs (default: 1) are processors of a shard; "
        f"{'; '.join(_SETTINGS[key][1] for key in settings)}.",
    )


def spread_campaign(asked: SoakOptions, executor: Executor, progress: str) -> SoakReport:
    """Play a campaign on an engine, and merge what came back."""
    from pymllm.soak.spread.engines import open_engine

    begun = monotonic()
    context = click.get_current_context()
    is_default = context.get_parameter_source("jobs") is ParameterSource.DEFAULT
    asked = replace(asked, jobs=1 if is_default else asked.jobs)
    with options.refusing(), options.refusing_unreadable():
        plan = None if asked.resume is None else read_plan(asked.resume)
        if plan is not None:
            asked.check_resumed(plan.adapters)
        options.add_folder_of(executor.name)
        seed = secrets.randbelow(2**32) if asked.seed is None else asked.seed
        folder = asked.resume or asked.output or Path("runs") / f"soak-{seed if plan is None else plan.seed}"
        corpus = None if asked.corpus is None else _read_corpus(asked.corpus)
        engine = open_engine(executor.name, asked.jobs, folder / "jobs")
        try:
            if plan is None:
                shards = executor.shards or _default_shards(asked, engine)
                plan = _make_plan(asked, seed, shards, corpus)
                write_plan(plan, folder)
            # An engine prints where results belong, such as what it has to say of a node that is gone.
            with open(folder / ENGINE_LOG, "a", encoding="utf-8") as said, redirect_stdout(said):
                return _play(plan, asked, executor, folder, engine, progress, begun)
        finally:
            engine.close(at_once=True)


def _default_shards(asked: SoakOptions, engine: Engine) -> int:
    """Return how many shards a campaign is cut into: never more than it has runs."""
    if asked.operations is None:  # each plays for so many minutes
        return engine.workers or _UNKNOWN
    few = _FEW * engine.workers if engine.workers else _UNKNOWN
    return max(1, min(few, asked.operations // (asked.longest or LONGEST)))


def _make_plan(asked: SoakOptions, seed: int, shards: int, corpus: str | None) -> ShardPlan:
    known = click.get_current_context().meta.get(options.KNOWN_FILE)
    audit = None if asked.audit is None else {0: "off", 1: "every"}.get(asked.audit, f"1/{asked.audit}")
    return ShardPlan(
        shards,
        seed,
        tuple(dict.fromkeys(asked.adapters)),
        asked.configs,
        asked.machine,
        asked.operations,
        asked.minutes,
        asked.longest,
        audit,
        None if known is None else read_text_file(Path(known)),
        corpus,
    )


def _read_corpus(folder: Path) -> str | None:
    """Return the text of a corpus, which goes to a node with each shard; ``None`` where there is none yet.

    `UsageError`: it is too long for that. `TraceError`: it is none.
    """
    from pymllm.soak.corpus import CORPUS_FILE, read_corpus

    path = folder / CORPUS_FILE
    if not path.exists():
        return None
    if (size := path.stat().st_size) > _CORPUS_LIMIT:
        raise UsageError(
            f"--corpus {folder}: {CORPUS_FILE} has {size:,} bytes, and goes out with each shard; with "
            f"--executor it may have {_CORPUS_LIMIT:,}. Play --shard I/N where the folder is"
        )
    read_corpus(folder)
    return read_text_file(path)


def _play(
    plan: ShardPlan,
    asked: SoakOptions,
    chosen: Executor,
    folder: Path,
    engine: Engine,
    mode: str,
    begun: float,
) -> SoakReport:
    from pymllm.soak.spread.returned import Returned
    from pymllm.soak.spread.spread import RETRIES, Progress, Spread

    words = ["--jobs", str(asked.jobs), "--timeout", str(asked.timeout)]
    words += ["--stop-on-failure"] if asked.stop_on_failure else []
    (folder / STOP).unlink(missing_ok=True)
    tasks = plan.tasks(folder, words)
    progress = Progress(plan.shards, done=plan.shards - len(tasks))
    returned = Returned(folder, plan.shards, progress, complain)
    retries = RETRIES if chosen.retries is None else chosen.retries
    with spread_display(mode) as show:
        spread = Spread(
            engine,
            returned.keep,
            progress,
            retries=retries,
            stops_on_failure=asked.stop_on_failure,
            show=show,
        )
        spread.play(tasks)
    if spread.interruption is not None:
        (folder / STOP).touch()
    engine.close(at_once=spread.interruption is not None)
    report = _merge(plan, asked, folder, returned.folders, returned.refused, spread)
    if progress.retried:
        attempts, shards = count_of(progress.retried, "attempt"), _names_of(progress.again)
        complain(f"tried again after a loss: {attempts} of {shards}; the last: {progress.trouble}")
    if progress.resumed:
        complain(f"taken over from attempts that were lost: {count_of(progress.resumed, 'run')}")
    if spread.interruption is not None or progress.lost:
        complain(f"continue with: {_resuming(plan, folder, chosen)}")
    if spread.interruption is not None and not report.totals.runs:
        raise spread.interruption
    at_once = min(engine.workers or plan.shards, plan.shards)
    return replace(report, seconds=monotonic() - begun, jobs=at_once * asked.jobs)


def _names_of(shards: Collection[int]) -> str:
    """Name some shards by their numbers, or say how many they are."""
    if len(shards) > _NAMED:
        return f"{len(shards):,} shards"
    return f"shard{'s' if len(shards) > 1 else ''} {', '.join(map(str, sorted(shards)))}"


def _merge(
    plan: ShardPlan,
    asked: SoakOptions,
    folder: Path,
    shards: list[Path],
    refused: dict[str, str],
    spread: Spread,
) -> SoakReport:
    """Merge the shards that are there into the campaign's folder, in place of what was merged before."""
    from pymllm.machines.smoke import SmokeFailure
    from pymllm.soak.ledger import FILE
    from pymllm.soak.merged_campaigns import MergePlan, merge_campaigns
    from pymllm.soak.results import SoakReport
    from pymllm.soak.totals import Totals

    def refuse(played: Iterable[str]) -> None:
        for name in sorted(played):  # what a node sent may name anything
            options.adapter_of_file(str(folder), name, name if name in plan.adapters else None)

    (folder / FILE).unlink(missing_ok=True)
    shrinks = int(spread.interruption is None)  # once, as one process does
    merge = MergePlan(folder, shrinks, jobs=asked.jobs, refuse=refuse)
    report = merge_campaigns(shards, merge) if shards else SoakReport((), Totals(), (), folder=folder)
    lost = {f"{number}/{plan.shards}": why for number, why in sorted(spread.progress.lost.items())}
    failures = tuple(SmokeFailure(name, None, why) for name, why in refused.items())
    return replace(report, refused=failures, given_up=lost, interruption=spread.interruption)


def _resuming(plan: ShardPlan, folder: Path, chosen: Executor) -> str:
    """Return the command with which a campaign goes on: what runs from outside is named again."""
    words = ["pymllm", "resume", str(folder), "--executor", chosen.name]
    for name in plan.adapters:
        words += [] if options.is_of_registry(name) else ["--adapter", name]
    return shlex.join(words)


# -- while it runs -----------------------------------------------------------------------------------------


@contextmanager
def spread_display(mode: str, clock: Callable[[], float] = monotonic) -> Iterator[Callable[[Progress], None]]:
    """Show how far a campaign is over all nodes: a bar on a terminal, else a line now and then."""
    if not shows_progress(mode):
        yield lambda progress: None
        return
    begun = clock()

    def line(progress: Progress) -> str:
        return describe_spread(progress, clock() - begun)

    if not sys.stderr.isatty():
        if mode == "on":
            complain("shards go out")
        yield paced(lambda progress: complain(line(progress)), BETWEEN_LINES, clock)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    with Live(
        console=Console(file=sys.stderr), auto_refresh=False, transient=True, redirect_stdout=False
    ) as live:

        def draw(progress: Progress) -> None:
            bar = ProgressBar(progress.shards, progress.done + len(progress.lost))
            grid = Table.grid()
            grid.add_row(bar)
            grid.add_row(Text(line(progress)))
            live.update(grid, refresh=True)

        yield paced(draw, _BETWEEN_DRAWS, clock)


def describe_spread(progress: Progress, seconds: float) -> str:
    """Say in one line how far a campaign is."""
    rate = f"{progress.operations / seconds:,.0f}/s" if seconds else "-"
    words = [
        f"{progress.done:,} of {progress.shards:,} shards done, {progress.running:,} running, "
        f"{progress.waiting:,} waiting, {progress.retried:,} retried, {len(progress.lost):,} given up",
        f"{progress.operations:,} operations",
        rate,
        f"{progress.failures:,} failures",
    ]
    words += [] if progress.workers is None else [f"{progress.workers:,} workers"]
    words += [f"last trouble: {progress.trouble}"] if progress.trouble else []
    return f"{time_of(seconds)}  " + "  ".join(words)
