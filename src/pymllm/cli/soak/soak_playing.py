"""The playing of campaigns by commands, in this process or on an engine."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymllm.cli import options
from pymllm.cli.output import complain
from pymllm.cli.soak.soak_options import SoakOptions
from pymllm.cli.soak.soak_spread import spread_campaign
from pymllm.cli.soak.soak_telling import tell_campaigns
from pymllm.cli.spread import Executor

if TYPE_CHECKING:
    from pymllm.soak.results import SoakReport


def play_and_tell(
    asked: SoakOptions, progress: str, told: dict[str, Any], executor: Executor | None = None
) -> int:
    """Play a campaign, print its results, and return the exit status."""
    # Not before: this loads Hypothesis, which --help and a mistyped option can do without.
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
    report = _play(asked, progress) if executor is None else spread_campaign(asked, executor, progress)
    _tell_of_corpus(asked.corpus, report)
    if report.interruption is not None and executor is None and asked.run is None:
        complain(f"continue with: {_resuming(report)}")
    return tell_campaigns(report, () if report.folder is None else (report.folder,), **told)


def _play(asked: SoakOptions, progress: str) -> SoakReport:
    from pymllm.cli.soak.soak_table import soak_display
    from pymllm.soak.campaign import soak
    from pymllm.soak.resuming import load_campaign

    with options.refusing(), options.refusing_unreadable():
        resumed = None if asked.resume is None else load_campaign(asked.resume)
        if resumed is not None:
            asked.check_resumed(place.adapter for place in resumed[0].places)
        plan, folder = asked.settle(resumed[0].operations if resumed is not None else None)
        options.tell_shard_of_environment(plan.shard)
        with soak_display(progress) as show:
            return soak(plan, folder, resumed, show)


def _tell_of_corpus(folder: Path | None, report: SoakReport) -> None:
    """Report how many runs of a corpus came first, as it may be empty or for other adapters."""
    if folder is None or not report.headers:
        return
    from pymllm.soak.corpus import read_corpus

    runs, played = len(read_corpus(folder)), len(report.headers[0].corpus)
    if not runs:
        complain(f"--corpus {folder}: there is no corpus in it yet, so that no run came first")
    else:
        complain(f"--corpus {folder}: runs in it that fit here, and came first: {played:,} of {runs:,}")


def _resuming(report: SoakReport) -> str:
    """Return the command that resumes a campaign, with outside adapters named again."""
    names = dict.fromkeys(place.adapter for header in report.headers for place in header.places)
    words = ["pymllm", "resume", str(report.folder)]
    for name in names:
        words += [] if options.is_of_registry(name) else ["--adapter", name]
    return shlex.join(words)
