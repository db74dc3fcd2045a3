"""Carrying out a verification: options settled, the search behind a progress bar."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager

import click

from pymllm.cli.progress import progress_bar
from pymllm.cli.verify_plan import VerifyOptions
from pymllm.conformance.machines import PROFILES
from pymllm.conformance.results import VerifyReport
from pymllm.conformance.runner import verify
from pymllm.conformance.search_tasks import VerifyPlan
from pymllm.errors import UsageError

__all__ = ["run_options", "settle"]

_SEED_STOP = 2**32


def settle(options: VerifyOptions) -> VerifyPlan:
    """Fill in the defaults; a seed is drawn where the profile has none.

    Parameters
    ----------
    options : VerifyOptions
        Checked.
    """
    profile = PROFILES[options.profile]
    seed = profile.seed if options.seed is None else options.seed
    if seed is None:
        seed = secrets.randbelow(_SEED_STOP)
    return VerifyPlan(
        options.find_adapters(),
        options.find_laws(),
        profile,
        seed,
        options.examples,
        options.count_jobs(),
        options.timeout,
        options.strict,
    )


def run_options(options: VerifyOptions, progress: str) -> VerifyReport:
    """Verify.

    Parameters
    ----------
    options : VerifyOptions
        Checked.
    progress : str
        ``"auto"``, ``"on"`` or ``"off"``, as of `progress_bar`.

    Raises
    ------
    click.UsageError
        No adapter asked for can test a law asked for, or one cannot be imported.
    """

    def show(label: str, total: int) -> AbstractContextManager[Callable[[int], None] | None]:
        return progress_bar(progress, label, total, unit="")

    try:
        return verify(settle(options), show)
    except UsageError as error:
        raise click.UsageError(f"{error}.") from error
