"""The command ``pymllm adapters``: all adapters, the implementations of each, and their claims."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import click

from pymllm.adapters.base import CAPABILITIES
from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.registry import OWN, adapters, make_adapter, plugin_problems
from pymllm.cli import options
from pymllm.cli.output import complain, say
from pymllm.cli.tables import draw, make_legend, make_table, show
from pymllm.errors import AdapterError
from pymllm.history.files import Config
from pymllm.torch_extra import why_no_torch


@click.command("adapters", short_help="List the implementations that can be examined.")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=options.complete_adapter)
@options.json
@click.option(
    "-v", "--verbose", is_flag=True, help="List the configurations, too, with the capabilities of each."
)
def adapters_command(names: tuple[str, ...], as_json: bool, verbose: bool) -> None:
    """List adapters: name, kind, number of configurations, and the adapted class.

    NAME is a name of the list or module:Class; the default is all names.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    asked = [options.find_adapter_or_refuse(name, is_run=False) for name in dict.fromkeys(names)]
    entries = asked or adapters()
    found = _describe_all(entries)
    document = {"schema": "pymllm.adapters", "version": 1, "adapters": found}
    if as_json:
        say(json.dumps(document, indent=2))
    else:
        show(_make_text(found, verbose))
    for problem in () if asked else plugin_problems():
        complain(problem)


def _is_plugged_in(entry: AdapterEntry) -> bool:
    """Tell whether an adapter is from an installed package, so that its failure is a line and no error."""
    return entry not in OWN and entry in adapters()


def _describe_all(entries: Sequence[AdapterEntry]) -> list[dict[str, Any]]:
    """Return descriptions of adapters, made in a separate process since building one runs foreign code."""
    # Not at the top: --help and a mistyped option can do without.
    from pymllm.work.workers import Lost, Workers

    found = []
    with Workers(1) as workers:
        for entry, answer in workers.stream(_describe, entries):
            if isinstance(answer, Lost):
                if not _is_plugged_in(entry):
                    raise AdapterError(entry.name, answer.message)
                answer = _without(entry, None, answer.message)
            found.append(answer)
    if workers.interruption is not None:
        raise workers.interruption
    return found


def _describe(entry: AdapterEntry) -> dict[str, Any]:
    reason = why_no_torch() if entry.needs_torch else None
    if reason is not None:
        return _without(entry, None, reason)
    kind = None
    try:
        adapter_class = options.load_or_refuse(entry.name)
        kind = adapter_class.KIND
        configurations = [_claims(entry, dict(config)) for config in adapter_class.CONFIGURATIONS]
    except AdapterError as error:
        if not _is_plugged_in(entry):
            raise
        # Whoever lists all has not asked for other people's packages.
        return _without(entry, kind, error.message)
    return {"name": entry.name, "kind": kind, "summary": entry.summary, "configurations": configurations}


def _without(entry: AdapterEntry, kind: str | None, problem: str) -> dict[str, Any]:
    """Return the description of an adapter that cannot start."""
    described = {"name": entry.name, "kind": kind, "summary": entry.summary}
    return {**described, "configurations": [], "problem": problem}


def _claims(entry: AdapterEntry, config: Config) -> dict[str, Any]:
    adapter = make_adapter(entry.place, config)
    adapter.close()
    return {"config": config, "capabilities": sorted(adapter.capabilities)}


def _make_text(found: Sequence[dict[str, Any]], verbose: bool) -> str:
    """Return a table of adapters; ``verbose`` adds configurations and claims below."""
    table = make_table("adapter", "kind", "configurations", "adapts", right=("configurations",), gap=2)
    details: list[str] = []
    claimed: set[str] = set()
    for adapter in found:
        configurations, problem = adapter["configurations"], adapter.get("problem")
        count = "cannot be built" if problem else f"{len(configurations)}"
        table.add_row(adapter["name"], adapter["kind"] or "-", count, adapter["summary"])
        details += ["", adapter["name"], *([f"    {problem}"] if problem else [])]
        for it in configurations:
            config = ", ".join(f"{key} {value}" for key, value in it["config"].items()) or "no settings"
            details.append(f"    {config}: {', '.join(it['capabilities']) or 'claims nothing'}")
            claimed.update(it["capabilities"])
    parts = [table, *details] if verbose else [table]
    if verbose and claimed:
        parts += ["", make_legend({name: CAPABILITIES[name] for name in CAPABILITIES if name in claimed})]
    return draw(*parts, fits_terminal=True)
