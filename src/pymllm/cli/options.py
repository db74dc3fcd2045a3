"""The options that several commands have, so that each reads the same wherever it is found."""

from __future__ import annotations

import os

import click

from pymllm.cli.values import Amount, Whole

__all__ = [
    "DEFAULT_TIMEOUT",
    "adapters_option",
    "count_processes",
    "jobs_option",
    "json_option",
    "progress_option",
    "timeout_option",
]

DEFAULT_TIMEOUT = 30.0
"""Seconds that one call of an adapter may take."""

adapters_option = click.option(
    "--adapter",
    "adapters",
    metavar="NAME",
    multiple=True,
    show_default="all of our own classes",
    help="A name of `pymllm adapters`, or module:Class; may be repeated.",
)
"""For the commands that search some adapters, by default all of ours; their parameter is ``adapters``."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
"""For the commands that have a result; their parameter is ``as_json``."""

progress_option = click.option(
    "--progress",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Bar on standard error; auto shows it on a terminal.",
)
"""For the commands that take long; the value is the mode of `pymllm.cli.progress.progress_bar`."""

jobs_option = click.option(
    "--jobs",
    type=Whole(1, 1024),
    metavar="N",
    show_default="the number of processors",
    help="Processes; what is examined never runs in this one.",
)
"""For the commands that spread their work; `count_processes` reads the value."""

timeout_option = click.option(
    "--timeout",
    type=Amount(0, 1_000_000),
    metavar="SECONDS",
    default=DEFAULT_TIMEOUT,
    show_default=True,
    help="Most for one call of an adapter: what takes longer hangs. 0: no limit.",
)
"""For the commands that run adapters."""


def count_processes(jobs: int | None) -> int:
    """Return how many processes a command uses.

    Parameters
    ----------
    jobs : int or None
        The value of `jobs_option`.

    Returns
    -------
    int
        Without a value, the processors that this process may run on.
    """
    return jobs or len(os.sched_getaffinity(0))
