"""``pymllm schema``: the JSON schemas of what is printed and written, as docs/schemas has them."""

from __future__ import annotations

import importlib
import json
from typing import Any

import click

from pymllm.cli.program import say

__all__ = ["SCHEMAS", "make_schema", "schema_command"]

SCHEMAS: dict[str, tuple[str, str]] = {
    "compare": ("what compare prints", "pymllm.cli.compare_matrix:compare_schema"),
    "doctor": ("what doctor prints", "pymllm.cli.doctor_document:doctor_schema"),
    "faults": ("what faults prints", "pymllm.cli.faults_document:faults_schema"),
    "gpu-memory": ("a line of pytest --gpu-memory-log", "pymllm.testing.memory_text:gpu_memory_schema"),
    "history": ("a line of a program's file", "pymllm.history.files:history_schema"),
    "judgement": ("what judge and rerun print", "pymllm.cli.judgement:judgement_schema"),
    "ledger": ("a line of a soak's ledger", "pymllm.conformance.soak.records:ledger_schema"),
    "peers": ("what tox -e bench-peers writes", "pymllm.instrument.peer_comparison:peers_schema"),
    "protocol-check": (
        "what verify --check-protocol prints",
        "pymllm.cli.protocol_document:protocol_check_schema",
    ),
    "protocol": ("a line said to a --command, or by it", "pymllm.adapters.process.messages:protocol_schema"),
    "run": ("a line of a run in a store", "pymllm.report.store:run_schema"),
    "shrink": ("what shrink prints", "pymllm.cli.shrink_document:shrink_schema"),
    "situations": ("what situations prints", "pymllm.cli.situations_document:situations_schema"),
    "soak": ("what soak prints", "pymllm.cli.soak_document:soak_schema"),
    "verify": ("what verify prints", "pymllm.cli.verify_document:verify_schema"),
}
"""By name: what is described, and the function that makes the schema, loaded only when it is asked for."""


def make_schema(name: str) -> dict[str, Any]:
    """Return a schema of `SCHEMAS`, made from the records that it describes."""
    module, _, function = SCHEMAS[name][1].partition(":")
    schema: dict[str, Any] = getattr(importlib.import_module(module), function)()
    return schema


def _list_schemas() -> str:
    return "\b\n" + "\n".join(f"{name:<15} {described}" for name, (described, _) in SCHEMAS.items())


@click.command(
    "schema",
    short_help="Print a JSON schema.",
    help=f"Print the JSON schema of what a command prints with --json, or writes.\n\n{_list_schemas()}",
)
@click.argument("name", type=click.Choice(tuple(SCHEMAS)))
def schema_command(name: str) -> None:
    """Print a schema."""
    say(json.dumps(make_schema(name), indent=2))
