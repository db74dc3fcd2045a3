"""The option ``pymllm soak --executor``, by which an engine plays a campaign's shards."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from pymllm.cli import options
from pymllm.cli.output import complain
from pymllm.cli.soak.soak_options import LONGEST, SoakOptions
from pymllm.cli.spread import Executor, count_shards, jobs_of_shard, play_shards, tell_of_losses
from pymllm.errors import UsageError
from pymllm.soak.spread_plan import STOP, ShardPlan, read_plan, write_plan
from pymllm.text_file import read_text_file
from pymllm.work.spread.shard_task import MOST

if TYPE_CHECKING:
    from pymllm.soak.results import SoakReport
    from pymllm.work.spread.engines import Engine
    from pymllm.work.spread.spread import Spread

ENGINE_LOG = "engine.log"
"""The name of the file with an engine's output, in the campaign's folder."""
_CORPUS_LIMIT = 2**22  # bytes


def spread_campaign(asked: SoakOptions, executor: Executor, progress: str) -> SoakReport:
    """Play a campaign on an engine, and merge the returned results."""
    from pymllm.work.spread.engines import open_engine

    begun = monotonic()
    asked = replace(asked, jobs=jobs_of_shard(asked.jobs))
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
    """Return the number of shards for a campaign, at most the number of its runs."""
    if asked.operations is None:  # each plays for so many minutes
        return engine.workers or count_shards(engine, MOST)
    return count_shards(engine, asked.operations // (asked.longest or LONGEST))


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
    """Return the text of a corpus, to send with each shard; ``None`` if there is none yet.

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
    from pymllm.soak.returned_shards import Returned
    from pymllm.work.spread.spread import Progress

    words = ["--jobs", str(asked.jobs), "--timeout", str(asked.timeout)]
    words += ["--stop-on-failure"] if asked.stop_on_failure else []
    (folder / STOP).unlink(missing_ok=True)
    tasks = plan.tasks(folder, words)
    progress = Progress(plan.shards, done=plan.shards - len(tasks))
    returned = Returned(folder, plan.shards, progress, complain)
    spread = play_shards(
        engine, tasks, progress, returned.keep, chosen, mode, stops_on_failure=asked.stop_on_failure
    )
    if spread.interruption is not None:
        (folder / STOP).touch()
    engine.close(at_once=spread.interruption is not None)
    report = _merge(plan, asked, folder, returned.folders, returned.refused, spread)
    tell_of_losses(progress)
    if spread.interruption is not None or progress.lost:
        complain(f"continue with: {_resuming(plan, folder, chosen)}")
    if spread.interruption is not None and not report.totals.runs:
        raise spread.interruption
    at_once = min(engine.workers or plan.shards, plan.shards)
    return replace(report, seconds=monotonic() - begun, jobs=at_once * asked.jobs)


def _merge(
    plan: ShardPlan,
    asked: SoakOptions,
    folder: Path,
    shards: list[Path],
    refused: dict[str, str],
    spread: Spread,
) -> SoakReport:
    """Merge shards into the campaign's folder, replacing an earlier merge."""
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
    """Return the command that resumes a campaign, with outside adapters named again."""
    words = ["pymllm", "resume", str(folder), "--executor", chosen.name]
    for name in plan.adapters:
        words += [] if options.is_of_registry(name) else ["--adapter", name]
    return shlex.join(words)
