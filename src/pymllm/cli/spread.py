"""The options by which a long command divides its work; with ``--executor``, an engine plays shards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pymllm.cli import options
from pymllm.cli.output import complain
from pymllm.cli.tables import BETWEEN_LINES, paced, shows_progress
from pymllm.report.quantities import count_of, show_duration
from pymllm.text_file import read_text_file
from pymllm.work.spread.shard_task import MOST

if TYPE_CHECKING:
    from pymllm.work.shards import Shard
    from pymllm.work.spread.engines import Engine
    from pymllm.work.spread.shard_task import ShardTask
    from pymllm.work.spread.spread import Keeper, Progress, Spread

_FEW = 4  # shards for each worker, so that a slow one holds up little
_UNKNOWN = 16  # shards, where an engine does not say how many workers it has
_NAMED = 10  # shards that are named one by one
_BETWEEN_DRAWS = 0.5  # seconds
_TYPED = "pymllm.typed"
"""The key of a command's context for the typed words of its options."""
_OF_SHARDS = {"executor", "shard", "keep", "jobs", "deviations", "progress"}
_OF_RESULTS = {
    "as_json",
    "store",
    "output",
    "junit",
    "begun",
    "release",
    "page",
    "verbose",
    "strict",
    "progress",
}
"""Options about sharing and printing, which are not passed on to shards."""


@dataclass(frozen=True, slots=True)
class Executor:
    """The value of ``--executor``: an engine, and how to submit shards to it."""

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


class _ExecutorOption(click.Option):
    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Store the typed words of all options, which shards receive."""
        ctx.meta[_TYPED] = dict(opts)
        return super().handle_parse_result(ctx, opts, args)


def executor_option(*settings: str, of_campaign: bool = False) -> Callable[[Any], Any]:
    """Return the option for an engine that plays a command's shards, with some settings."""
    readers = {key: _SETTINGS[key][0] for key in settings}

    def executor(value: object) -> Executor:
        name, given = options.read_settings(str(value), readers)
        return Executor(name, **given)

    return click.option(
        "--executor",
        cls=_ExecutorOption,
        type=executor,
        metavar=f"ENGINE{''.join(f'[,{key}=N]' for key in settings)}",
        help="Play in shards on many machines: ray[:ADDRESS], dask:ADDRESS, slurm[:PARTITION], or "
        "module:factory, which makes a concurrent.futures.Executor. --jobs (default: 1) are processors of a "
        f"shard, and {'--minutes count for each' if of_campaign else 'results go to --keep'}; "
        f"{'; '.join(_SETTINGS[key][1] for key in settings)}.",
    )


def work_options(command: Any) -> Any:
    """Add the options by which a command divides its tasks and keeps their results."""
    for option in (options.jobs, executor_option("shards", "retries"), options.keep, options.shard):
        command = option(command)
    return command


def shard_beside(executor: Executor | None, shard: Shard | None) -> Shard | None:
    """Return the shard to do; refuse a typed shard together with an executor, which makes its own."""
    if executor is None:
        return shard
    why = "a shard plays alone, and --executor makes the shards itself"
    options.refuse_typed(("shard",), f"{why}; leave one of them out", way="")
    return None  # one may be of the environment


def demand_keep(executor: Executor | None, keep: Path | None) -> None:
    """Refuse an executor without a file for its results."""
    if executor is not None and keep is None:
        raise click.UsageError(
            f"--executor {executor.name}: results are kept as they come back; give --keep FILE."
        )


def count_shards(engine: Engine, most: int) -> int:
    """Return the number of shards for some work: a few per worker, and at most one per task."""
    few = _FEW * engine.workers if engine.workers else _UNKNOWN
    return max(1, min(few, most))


def jobs_of_shard(jobs: int) -> int:
    """Return the number of processors for a shard: 1, unless typed."""
    context = click.get_current_context()
    return 1 if context.get_parameter_source("jobs") is ParameterSource.DEFAULT else jobs


def spread_tasks(
    asked: Executor,
    keep: Path,
    source: str,
    most: Callable[[], int],
    jobs: int,
    mode: str,
) -> None:
    """Have an engine carry out this command's tasks in shards, and store their results in a file.

    What did not come back is done by this process, as what the file of any shards lacks. ``source`` is what
    the tasks follow from beside the words, and ``most`` counts them. `KeyboardInterrupt`: after an interrupt,
    with what came by then in the file.
    """
    from pymllm.work.spread.engines import open_engine
    from pymllm.work.spread.kept_shards import KeptShards
    from pymllm.work.spread.spread import Progress

    context = click.get_current_context()
    path = context.meta.get(options.KNOWN_FILE)
    jobs = jobs_of_shard(jobs)
    stop = keep.with_name(f"{keep.name}.stop")
    with options.refusing(), options.refusing_unreadable():
        known = None if path is None else read_text_file(Path(path))
        options.add_folder_of(asked.name)
        kept = KeptShards(keep, _words_of(context), f"{source} {known}")
        engine = open_engine(asked.name, jobs, keep.with_name(f"{keep.name}.jobs"))
        try:
            with redirect_stdout(sys.stderr):  # an engine prints where results belong
                shards = kept.cut(asked.shards, lambda: count_shards(engine, most()))
                stop.unlink(missing_ok=True)
                tasks = kept.tasks(shards, ("--jobs", str(jobs)), known, stop)
                progress = Progress(shards, done=shards - len(tasks), unit="tasks")
                keeper: Keeper = lambda played: kept.keep(played, shards, progress)  # noqa: E731
                spread = play_shards(engine, tasks, progress, keeper, asked, mode)
                if spread.interruption is not None:
                    stop.touch()
        finally:
            engine.close(at_once=True)
    tell_of_losses(progress)
    for number, why in sorted(progress.lost.items()):
        complain(f"shard {number}/{shards}: {why}; its missing tasks are done here")
    if spread.interruption is not None:
        raise spread.interruption


def _words_of(context: click.Context) -> list[str]:
    """Return the command line for a shard."""
    verbs: list[str] = []
    above: click.Context | None = context
    while above is not None and above.parent is not None:
        verbs, above = [str(above.info_name), *verbs], above.parent
    words, arguments = verbs, list[str]()
    for param in context.command.params:
        value = context.meta[_TYPED].get(param.name)
        values = [*value] if isinstance(value, list | tuple) else [value]
        if param.name in _OF_SHARDS | _OF_RESULTS:
            continue
        if isinstance(value, bool):
            words.append((param.opts if value else param.secondary_opts)[0])
        elif isinstance(param, click.Argument):
            arguments += [str(it) for it in values if isinstance(it, str)]
        else:
            words += [word for it in values if isinstance(it, str) for word in (param.opts[0], it)]
    return [*words, *arguments]


def play_shards(
    engine: Engine,
    tasks: Sequence[ShardTask],
    progress: Progress,
    keep: Keeper,
    asked: Executor,
    mode: str,
    *,
    stops_on_failure: bool = False,
) -> Spread:
    """Have an engine play shards, and show the progress."""
    from pymllm.work.spread.spread import RETRIES, Spread

    with spread_display(mode) as show:
        spread = Spread(
            engine,
            keep,
            progress,
            retries=RETRIES if asked.retries is None else asked.retries,
            stops_on_failure=stops_on_failure,
            show=show,
        )
        spread.play(tasks)
    return spread


def tell_of_losses(progress: Progress) -> None:
    """Report repeated attempts after losses, and results recovered from lost attempts."""
    if progress.retried:
        attempts, shards = count_of(progress.retried, "attempt"), _names_of(progress.again)
        complain(f"tried again after a loss: {attempts} of {shards}; the last: {progress.trouble}")
    if progress.resumed:
        word = "run" if progress.unit == "operations" else "result"
        complain(f"taken over from attempts that were lost: {count_of(progress.resumed, word)}")


def _names_of(shards: Collection[int]) -> str:
    """Return the numbers of some shards as words, or only how many there are."""
    if len(shards) > _NAMED:
        return f"{len(shards):,} shards"
    return f"shard{'s' if len(shards) > 1 else ''} {', '.join(map(str, sorted(shards)))}"


# -- while it runs -----------------------------------------------------------------------------------------


@contextmanager
def spread_display(mode: str, clock: Callable[[], float] = monotonic) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of tasks over all nodes, as a bar on a terminal or as lines."""
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
    """Return a line on the progress of a list of tasks."""
    rate = f"{progress.amount / seconds:,.0f}/s" if seconds else "-"
    words = [
        f"{progress.done:,} of {progress.shards:,} shards done, {progress.running:,} running, "
        f"{progress.waiting:,} waiting, {progress.retried:,} retried, {len(progress.lost):,} given up",
        f"{progress.amount:,} {progress.unit}",
        rate,
        f"{progress.failures:,} failures",
    ]
    words += [] if progress.workers is None else [f"{progress.workers:,} workers"]
    words += [f"last trouble: {progress.trouble}"] if progress.trouble else []
    return f"{show_duration(seconds)}  " + "  ".join(words)
