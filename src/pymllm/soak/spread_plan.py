"""The plan of a campaign over many machines, in a file that suffices to resume the campaign.

The file may be anybody's. It has the options of a campaign and no command line; adapters that only it names
are not played (`pymllm.cli.options.adapter_of_file`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from pymllm.errors import TraceError, UsageError
from pymllm.history.files import Config
from pymllm.history.schema import schema_of
from pymllm.soak.resuming import stays_inside
from pymllm.text_file import read_json, read_text_file, write_text_file
from pymllm.work.spread.shard_task import LEDGER, MOST, ShardTask

FILE = "shards.json"
"""The name of the plan's file in the folder of a campaign."""
SHARDS = "shards"
"""The folder beside the plan's file with a folder for each returned shard."""
STOP = "stop"
"""The name of a file beside the plan's that makes shards end early on nodes that see it."""
_FORMAT, _SCHEMA = "pymllm-shards", 1


class ShardPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """The plan of a campaign that is divided into shards.

    - ``shards``: How many.
    - ``seed``, ``operations``, ``longest``, ``audit``: As of ``pymllm soak``.
    - ``adapters``, ``configs``, ``machine``: Likewise.
    - ``minutes``: Of each shard.
    - ``known``: The text of the file of deviations.
    - ``corpus``: The text of a corpus.
    - ``campaign``: A name that no other campaign has.
    """

    shards: int
    seed: int
    adapters: tuple[str, ...] = ()
    configs: tuple[Config, ...] = ()
    machine: str | None = None
    operations: int | None = None
    minutes: float | None = None
    longest: int | None = None
    audit: str | None = None
    known: str | None = None
    corpus: str | None = None
    campaign: str = field(default_factory=lambda: secrets.token_hex(8))

    def words(self) -> tuple[str, ...]:
        """Return the options that decide which runs are played."""
        words = [word for name in self.adapters for word in ("--adapter", name)]
        words += [word for config in self.configs for word in ("--config", json.dumps(config))]
        for name in ("machine", "seed", "operations", "minutes", "longest", "audit"):
            value = getattr(self, name)
            words += [] if value is None else [f"--{name}", str(value)]
        return tuple(words)

    def tasks(self, folder: Path, words: Sequence[str]) -> list[ShardTask]:
        """Return the shards that have not been returned; ``words`` are their options."""
        tasks = (
            ShardTask(
                ("soak", *self.words(), *words),
                number,
                self.shards,
                self.campaign,
                known=self.known,
                directory=str(Path.cwd()),
                stop=str((folder / STOP).absolute()),
                corpus=self.corpus,
            )
            for number in range(1, self.shards + 1)
        )
        return [task for task in tasks if not (folder / SHARDS / task.name / LEDGER).exists()]


def plan_schema() -> dict[str, Any]:
    """Return the JSON schema of a campaign's plan file."""
    schema = schema_of(ShardPlan)
    opening = {"format": {"const": _FORMAT}, "schema": {"const": _SCHEMA}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{FILE} of pymllm soak --executor",
        **schema,
        "properties": {**opening, **schema["properties"]},
        "required": [*opening, *schema["required"]],
    }


def write_plan(plan: ShardPlan, folder: Path) -> None:
    """Write the plan of a new campaign; raise `UsageError` if the file exists."""
    for name in (FILE, LEDGER):
        if (folder / name).exists():
            raise UsageError(
                f"{folder}: there is a campaign already; pymllm resume it, or choose another folder"
            )
    folder.mkdir(parents=True, exist_ok=True)
    plain = {"format": _FORMAT, "schema": _SCHEMA, **msgspec.to_builtins(plan)}
    write_text_file(folder / FILE, json.dumps(plain, indent=2) + "\n")


def read_plan(folder: Path) -> ShardPlan:
    """Read the plan of a campaign to resume.

    `UsageError`: there is none, or something in the folder is a link that leads out of it. `TraceError`: it
    is none of this version.
    """
    path = folder / FILE
    if not path.is_file():
        raise UsageError(f"{folder}: there is no {FILE} in it, so it was begun without --executor")
    for entry in folder.iterdir():
        if not stays_inside(entry, folder):
            raise UsageError(f"{folder}: {entry.name} is a link to a place elsewhere; put that in its place")
    try:
        plain = read_json(read_text_file(path))
        if not isinstance(plain, dict):
            raise ValueError("the plan of a campaign is an object")
        named = plain.pop("format", None), plain.pop("schema", None)
        if named != (_FORMAT, _SCHEMA):
            raise ValueError(f"format and schema are {named}; this version reads {(_FORMAT, _SCHEMA)}")
        plan = msgspec.convert(plain, ShardPlan)
    except ValueError as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(str(path), None, str(error)) from None
    if not 1 <= plan.shards <= MOST:
        raise TraceError(str(path), None, f"shards is {plan.shards}; it must be in 1..{MOST:,}")
    if not plan.campaign.isalnum() or len(plan.campaign) > 64:
        raise TraceError(str(path), None, "campaign must be up to 64 letters and digits: it names a folder")
    return plan
