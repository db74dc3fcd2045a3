"""What a soak was asked to do, checked before anything heavy is loaded."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pymllm.cli.file_adapter import adapter_of_file
from pymllm.cli.options import count_processes
from pymllm.cli.verify_plan import find_adapter_or_refuse, own_or_refuse
from pymllm.history.files import Config

if TYPE_CHECKING:
    from pymllm.conformance.soak.campaign import SoakPlan

__all__ = ["AUDIT", "LEDGER", "AuditRate", "SoakOptions"]

_SEED_STOP = 2**32
_MINUTES = 10.0
_LONGEST = 50_000
LEDGER = "ledger.jsonl"
"""As `pymllm.conformance.soak.ledger.FILE`, which is not loaded for a mistyped option."""

if TYPE_CHECKING:
    _IntParam = click.ParamType[int]
else:
    _IntParam = click.ParamType  # generic from click 8.4 on


class AuditRate(_IntParam):
    """How often an implementation is walked from inside: ``every``, ``off``, or ``1/N``."""

    name = "rate"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the operations between two walks; 0 for none."""
        text = str(value).strip()
        found = re.fullmatch(r"1/(\d{1,9})", text)
        if text == "off":
            return 0
        if text == "every":
            return 1
        if found is None or not int(found[1]):
            self.fail(f"{text!r} is no rate; write every, off, or 1/64 for each 64th operation.", param, ctx)
        return int(found[1])


AUDIT = AuditRate()


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """The options of one ``pymllm soak``, as given; ``None`` where a default depends on the rest.

    Parameters
    ----------
    adapters : tuple of str
        Registry names or ``module:Class``; empty for our own classes. Of a campaign that goes on, those that
        may run although the ledger names them.
    configs : tuple of dict
        Only these configurations.
    machine : str or None
        Only this machine.
    seed, run, operations, longest, jobs : int or None
        As of `pymllm.conformance.soak.campaign.SoakPlan`.
    minutes : float or None
        After which no run begins.
    audit : int or None
        As `AuditRate` reads it.
    timeout : float
        Most seconds for one call of an adapter; 0 for no limit.
    stop_on_failure : bool
        Whether the first failure ends it.
    output, resume : Path or None
        The folder of a new campaign, or of one that is to go on.
    """

    adapters: tuple[str, ...]
    configs: tuple[Config, ...]
    machine: str | None
    seed: int | None
    run: int | None
    operations: int | None
    minutes: float | None
    longest: int | None
    audit: int | None
    jobs: int | None
    timeout: float
    stop_on_failure: bool
    output: Path | None
    resume: Path | None

    def check(self) -> None:
        """Refuse what does not fit together, and names that do not exist.

        Raises
        ------
        click.UsageError
            Says what would do.
        """
        for name in self.adapters:
            find_adapter_or_refuse(name)
        if self.configs and len(dict.fromkeys(self.adapters)) != 1:
            raise click.UsageError("--config is a configuration of one adapter; name it with --adapter.")
        if self.run is not None and not self.configs:
            raise click.UsageError("--run plays one run again: give its --adapter and --config, too.")
        if self.resume is None:
            return
        given = {
            "--config": self.configs,
            "--machine": self.machine,
            "--seed": self.seed,
            "--run": self.run,
            "--operations": self.operations,
            "--longest": self.longest,
            "--audit": self.audit,
            "--output": self.output,
        }
        for option, value in given.items():
            if value not in (None, ()):
                raise click.UsageError(f"{option}: a campaign that goes on has its own; leave it away.")
        if not (self.resume / LEDGER).is_file():
            raise click.UsageError(f"--resume {self.resume}: there is no {LEDGER} in it.")

    def check_resumed(self, adapters: Iterable[str]) -> None:
        """Refuse to play what a ledger alone names: it may be anybody's, whatever it says of itself.

        Parameters
        ----------
        adapters : iterable of str
            Those of the campaign that is to go on.

        Raises
        ------
        click.UsageError
            One of them is code that the options do not name, or they name one that is none of them.
        """
        known = dict.fromkeys(adapters)
        for name in self.adapters:
            if name not in known:
                played = ", ".join(known) or "no adapter"
                raise click.UsageError(
                    f"--adapter {name}: the campaign in {self.resume} plays {played}, and goes on with that."
                )
        for name in known:
            adapter_of_file(f"{self.resume}/{LEDGER}", name, name if name in self.adapters else None)

    def settle(self, operations: int | None = None) -> tuple[SoakPlan, Path]:
        """Fill in the defaults; without a seed, one is drawn.

        Parameters
        ----------
        operations : int, optional
            Of a campaign that goes on: who plays a number of operations has no clock, unless one is given.

        Returns
        -------
        SoakPlan
            What to do.
        Path
            The folder of the campaign; a new one is refused where there is a campaign already.
        """
        from pymllm.conformance.soak.campaign import SoakPlan

        seed = secrets.randbelow(_SEED_STOP) if self.seed is None else self.seed
        is_bounded = any(it is not None for it in (operations, self.operations, self.run))
        minutes = _MINUTES if self.minutes is None and not is_bounded else self.minutes
        names = dict.fromkeys(self.adapters)
        entries = tuple(find_adapter_or_refuse(name) for name in names) if names else own_or_refuse()
        plan = SoakPlan(
            entries,
            self.configs,
            seed,
            self.operations,
            None if minutes is None else 60 * minutes,
            self.longest or _LONGEST,
            64 if self.audit is None else self.audit,
            count_processes(self.jobs),
            self.timeout,
            self.stop_on_failure,
            self.machine,
            self.run,
        )
        folder = self.resume or self.output or Path("runs") / f"soak-{seed if self.run is None else self.run}"
        if self.resume is None and (folder / LEDGER).exists():
            raise click.UsageError(
                f"--output {folder}: a campaign is there already; --resume it, or choose another folder."
            )
        return plan, folder
