"""The options of campaigns, checked against each other and completed by defaults."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pymllm.cli import options
from pymllm.history.files import Config, Deviation

if TYPE_CHECKING:
    from pymllm.soak.campaign import SoakPlan
    from pymllm.work.shards import Shard

_SEED_STOP = 2**32
_MINUTES = 10.0
LONGEST = 50_000
LEDGER = "ledger.jsonl"
"""The value of `pymllm.soak.ledger.FILE`, repeated to avoid loading that module."""


def rate(value: object) -> int:
    """Read the number of operations between audits, 0 for none."""
    text = str(value).strip()
    found = re.fullmatch(r"1/(\d{1,9})", text)
    if text in ("off", "every"):
        return int(text == "every")
    if found is None or not int(found[1]):
        why = "write every, off, or 1/64 for each 64th operation."
        raise click.BadParameter(f"{text!r} is not a rate; {why}")
    return int(found[1])


FAR = "far"
"""The value of ``--config`` for an adapter's configurations in `pymllm.adapters.far`."""


def _config(value: object) -> Config | str:
    return FAR if value == FAR else options.json_object(value)


configs = click.option(
    "--config",
    "configs",
    type=_config,
    metavar="JSON",
    multiple=True,
    show_default="the adapter's, and larger ones",
    help="Run only this configuration of the adapter; may be repeated. far: the adapter's with rows so far "
    "apart that their addresses do not fit 32 bits.",
)


def spell_out(adapters: Iterable[str], configs: Iterable[Config | str]) -> tuple[Config, ...]:
    """Replace ``far`` by an adapter's far configurations; refuse it if there are none."""
    from pymllm.adapters.far import FAR as known
    from pymllm.adapters.far import why_not_far

    spelled: list[Config] = []
    for config in configs:
        if not isinstance(config, str):
            spelled.append(config)
            continue
        (name, *others) = dict.fromkeys(adapters) or ("",)
        if others or name not in known:
            raise click.UsageError(f"--config far is for one adapter of {', '.join(known)}; name it.")
        if reason := why_not_far():
            raise click.UsageError(f"--config far: {reason}.")
        spelled += known[name]
    return tuple(spelled)


machine = click.option(
    "--machine", metavar="NAME", help="Run only this state machine, such as PrefixMachine."
)
minutes = click.option(
    "--minutes",
    type=options.Amount(0, 1_000_000),
    metavar="M",
    show_default="10",
    help="Minutes after which no run begins.",
)
audit = click.option(
    "--audit",
    type=rate,
    show_default="1/64",
    help="How often an adapter checks its own data: every, 1/N operations, or off.",
)
stop_on_failure = click.option(
    "--stop-on-failure", is_flag=True, help="Begin no run after the first failure."
)
output = click.option(
    "--output",
    type=options.OUTPUT_FOLDER,
    metavar="FOLDER",
    show_default="runs/soak-SEED",
    help="Folder for the ledger and for programs that fail.",
)
trusted = click.option(
    "--adapter",
    "adapters",
    metavar="NAME",
    shell_complete=options.complete_adapter,
    multiple=True,
    help="A module:Class that a ledger names, and whose code may run; may be repeated.",
)


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """The options of a campaign as given; ``None`` for a default that depends on others."""

    adapters: tuple[str, ...]
    _: KW_ONLY
    configs: tuple[Config, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    shard: Shard | None = None
    corpus: Path | None = None
    machine: str | None = None
    seed: int | None = None
    run: int | None = None
    operations: int | None = None
    minutes: float | None = None
    longest: int | None = None
    audit: int | None = None
    jobs: int = 1
    timeout: float
    stop_on_failure: bool = False
    output: Path | None = None
    resume: Path | None = None

    def check(self, *, is_spread: bool = False) -> None:
        """Refuse options that do not fit together, and names that do not exist."""
        for name in self.adapters:
            options.find_adapter_or_refuse(name)
        if self.configs and len(dict.fromkeys(self.adapters)) != 1:
            raise click.UsageError("--config is for one adapter; name it with --adapter.")
        if self.shard is not None and self.seed is None:
            raise click.UsageError(
                f"{self.shard.asked}: all shards are of one campaign; give each the same --seed."
            )
        if self.corpus is not None and not self.corpus.is_dir():
            raise click.UsageError(
                f"--corpus {self.corpus}: there is no such folder; pymllm merge --corpus fills one."
            )
        if self.resume is not None and not is_spread and not (self.resume / LEDGER).is_file():
            raise click.UsageError(f"{self.resume}: there is no {LEDGER} in it.")

    def check_resumed(self, adapters: Iterable[str]) -> None:
        """Refuse adapters that only the ledger names and that are not installed, since it may be anyone's."""
        known = dict.fromkeys(adapters)
        for name in self.adapters:
            if name not in known:
                played = ", ".join(known) or "no adapter"
                raise click.UsageError(
                    f"--adapter {name}: the campaign in {self.resume} runs {played}; leave it out."
                )
        for name in known:
            options.adapter_of_file(f"{self.resume}/{LEDGER}", name, name if name in self.adapters else None)

    def settle(self, operations: int | None = None) -> tuple[SoakPlan, Path]:
        """Fill in the defaults, and draw a seed if none is given."""
        from pymllm.soak.campaign import SoakPlan
        from pymllm.soak.corpus import read_corpus

        seed = secrets.randbelow(_SEED_STOP) if self.seed is None else self.seed
        is_bounded = any(it is not None for it in (operations, self.operations, self.run))
        minutes = _MINUTES if self.minutes is None and not is_bounded else self.minutes
        plan = SoakPlan(
            options.find_adapters_or_own(self.adapters),
            self.configs,
            seed,
            self.operations,
            None if minutes is None else 60 * minutes,
            self.longest or LONGEST,
            64 if self.audit is None else self.audit,
            self.jobs,
            self.timeout,
            self.stop_on_failure,
            self.machine,
            self.run,
            self.deviations,
            self.shard,
            () if self.corpus is None else read_corpus(self.corpus),
        )
        name = f"soak-{seed if self.run is None else self.run}"
        if self.shard is not None:
            name += f"-{self.shard.number}-of-{self.shard.count}"
        folder = self.resume or self.output or Path("runs") / name
        if self.run is not None and self.output is None:  # people type a printed command more than once
            places = chain([folder], (Path("runs") / f"{name}-{number}" for number in count(2)))
            folder = next(it for it in places if not (it / LEDGER).exists())
        if self.resume is None and self.shard is None and (folder / LEDGER).exists():
            raise click.UsageError(
                f"--output {folder}: there is a campaign already; pymllm resume it, or choose another folder."
            )
        return plan, folder
