"""``pymllm adapters``: who can be examined, as what, and what each claims."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import click

from pymllm.adapters.base import CAPABILITIES
from pymllm.adapters.registry import OWN, PEERS, AdapterEntry, faulty, make_adapter
from pymllm.cli import options
from pymllm.cli.program import say
from pymllm.errors import AdapterError
from pymllm.history.files import Config
from pymllm.torch_extra import why_no_torch


@click.command("adapters", short_help="List who can be examined.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@options.json
@click.option("-v", "--verbose", is_flag=True, help="List configurations and what each claims.")
def adapters_command(names: tuple[str, ...], as_json: bool, verbose: bool) -> None:
    """List adapters: name, kind, what is adapted.

    NAME is a name of the list or module:Class; by default all are listed.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    entries = [options.find_adapter_or_refuse(name, is_run=False) for name in dict.fromkeys(names)] or [
        *OWN,
        *PEERS,
        *faulty(),
    ]
    found = _describe_all(entries)
    say(
        json.dumps({"schema": "pymllm.adapters", "version": 1, "adapters": found}, indent=2)
        if as_json
        else "\n".join(_lines(found, verbose))
    )


def _describe_all(entries: Sequence[AdapterEntry]) -> list[dict[str, Any]]:
    """Describe adapters, in a process beside this one: to build one runs code of whoever wrote it."""
    # Not at the top: --help and a mistyped option can do without.
    from pymllm.conformance.workers import Lost, Workers

    found = []
    with Workers(1) as workers:
        for entry, answer in workers.stream(_describe, entries):
            if isinstance(answer, Lost):
                raise AdapterError(entry.name, answer.message)
            found.append(answer)
    if workers.interruption is not None:
        raise workers.interruption
    return found


def _describe(entry: AdapterEntry) -> dict[str, Any]:
    described: dict[str, Any] = {"name": entry.name, "kind": None, "summary": entry.summary}
    reason = why_no_torch() if entry.is_of_torch else None
    if reason is not None:
        return {**described, "configurations": [], "problem": reason}
    adapter_class = options.load_or_refuse(entry.name)
    described["kind"] = adapter_class.KIND
    try:
        configurations = [_claims(entry, dict(config)) for config in adapter_class.CONFIGURATIONS]
    except AdapterError as error:
        if entry not in PEERS:
            raise
        # Whoever lists all of the registry has not asked for other people's packages.
        return {**described, "configurations": [], "problem": error.message}
    return {**described, "configurations": configurations}


def _claims(entry: AdapterEntry, config: Config) -> dict[str, Any]:
    adapter = make_adapter(entry.place, config)
    adapter.close()
    return {"config": config, "capabilities": sorted(adapter.capabilities)}


def _lines(found: Sequence[dict[str, Any]], verbose: bool) -> list[str]:
    width = max(len(adapter["name"]) for adapter in found)
    lines = []
    claimed: set[str] = set()
    for adapter in found:
        count = len(adapter["configurations"])
        configurations = "1 configuration" if count == 1 else f"{count} configurations"
        if "problem" in adapter:
            configurations = "cannot be built"
        lines.append(
            f"{adapter['name']:{width}}  {adapter['kind'] or '-':7}  {configurations:18} {adapter['summary']}"
        )
        lines += [f"    {adapter['problem']}"] if verbose and "problem" in adapter else []
        for it in adapter["configurations"] if verbose else ():
            config = ", ".join(f"{key} {value}" for key, value in it["config"].items())
            lines.append(
                f"    {config or 'no settings'}: {', '.join(it['capabilities']) or 'claims nothing'}"
            )
            claimed.update(it["capabilities"])
    if claimed:
        lines += ["", *(f"{name}: {CAPABILITIES[name]}" for name in CAPABILITIES if name in claimed)]
    return [line.rstrip() for line in lines]
