"""``pymllm schema``: the JSON schemas of what is printed and written, as docs/schemas has them."""

from __future__ import annotations

import importlib
import json
from typing import Any

import click

from pymllm.cli.program import say
from pymllm.conformance.documents import DOCUMENTS, schema_of_document

SCHEMAS: dict[str, tuple[str, str]] = {
    "compare": ("what compare prints", "pymllm compare"),
    "diff": ("what diff prints", "pymllm diff"),
    "doctor": ("what doctor prints", "pymllm doctor"),
    "faults": ("what faults prints", "pymllm faults"),
    "gpu-memory": ("a line of pytest --gpu-memory-log", "pymllm.testing.memory_text:gpu_memory_schema"),
    "history": ("a line of a program's file", "pymllm.history.files:history_schema"),
    "judgement": ("what judge and rerun print", "pymllm judge, pymllm rerun"),
    "ledger": ("a line of a soak's ledger", "pymllm.conformance.soak.records:ledger_schema"),
    "peers": ("what tox -e bench-peers writes", "pymllm.instrument.peer_comparison:peers_schema"),
    "protocol-check": ("what verify --check-protocol prints", "pymllm verify --check-protocol"),
    "protocol": ("a line said to a --command, or by it", "pymllm.adapters.process.messages:protocol_schema"),
    "replay": ("what replay prints", "pymllm replay"),
    "run": ("a line of a run in a store", "pymllm.report.store:run_schema"),
    "shrink": ("what shrink prints", "pymllm shrink"),
    "situations": ("what situations prints", "pymllm situations"),
    "soak": ("what soak prints", "pymllm soak"),
    "verify": ("what verify prints", "pymllm verify"),
}
"""By name: what is described, and the title of a document or the function that makes another schema."""


def make_schema(name: str) -> dict[str, Any]:
    """Return a schema of `SCHEMAS`, made from the records that it describes."""
    made_by = SCHEMAS[name][1]
    if f"pymllm.{name}" in DOCUMENTS:
        return schema_of_document(DOCUMENTS[f"pymllm.{name}"], made_by)
    module, _, function = made_by.partition(":")
    schema: dict[str, Any] = getattr(importlib.import_module(module), function)()
    return schema


_LIST = "\n".join(f"{name:<15} {described}" for name, (described, _) in SCHEMAS.items())


@click.command(
    "schema",
    short_help="Print a JSON schema.",
    help=f"Print the JSON schema of what a command prints with --json, or writes.\n\n\b\n{_LIST}",
)
@click.argument("name", type=click.Choice(tuple(SCHEMAS)))
def schema_command(name: str) -> None:
    """Print a schema."""
    say(json.dumps(make_schema(name), indent=2))
