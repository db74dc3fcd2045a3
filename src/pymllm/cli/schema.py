"""``pymllm schema``: the JSON schemas of what is printed and written, as docs/schemas has them."""

from __future__ import annotations

import json
from typing import Any

import click

from pymllm.adapters.process.messages import protocol_schema
from pymllm.cli.judgement import judgement_schema
from pymllm.cli.program import say
from pymllm.oracle.history import history_schema

__all__ = ["SCHEMAS", "make_schema", "schema_command"]

SCHEMAS = ("faults", "history", "judgement", "protocol", "verify")
"""What faults prints, a line of a history, judge and rerun, a line of the process protocol, verify."""


def make_schema(name: str) -> dict[str, Any]:
    """Return a schema of `SCHEMAS`, made from the records that it describes."""
    if name == "history":
        return history_schema()
    if name == "judgement":
        return judgement_schema()
    if name == "protocol":
        return protocol_schema()
    if name == "faults":
        from pymllm.cli.faults_document import faults_schema

        return faults_schema()
    from pymllm.cli.verify_document import verify_schema

    return verify_schema()


@click.command("schema", short_help="Print a JSON schema.")
@click.argument("name", type=click.Choice(SCHEMAS))
def schema_command(name: str) -> None:
    """Print the JSON schema of a document or file of this program.

    history: one line of a program's file. protocol: one line that is said to a --command, or by it. The
    others are what commands print with --json: faults, verify, and judgement for both judge and rerun.
    """
    say(json.dumps(make_schema(name), indent=2))
