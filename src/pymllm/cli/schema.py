"""``pymllm schema``: the JSON schemas of what is printed and written, as docs/schemas has them."""

from __future__ import annotations

import json
from typing import Any

import click

from pymllm.cli.judgement import judgement_schema
from pymllm.cli.program import say
from pymllm.oracle.history import history_schema

__all__ = ["SCHEMAS", "make_schema", "schema_command"]

SCHEMAS = ("doctor", "faults", "history", "judgement", "verify")
"""What doctor and faults print, a line of a history, what judge and rerun print, what verify prints."""


def make_schema(name: str) -> dict[str, Any]:
    """Return a schema of `SCHEMAS`, made from the records that it describes."""
    if name == "history":
        return history_schema()
    if name == "judgement":
        return judgement_schema()
    if name == "doctor":
        from pymllm.cli.doctor_document import doctor_schema

        return doctor_schema()
    if name == "faults":
        from pymllm.cli.faults_document import faults_schema

        return faults_schema()
    from pymllm.cli.verify_document import verify_schema

    return verify_schema()


@click.command("schema", short_help="Print a JSON schema.")
@click.argument("name", type=click.Choice(SCHEMAS))
def schema_command(name: str) -> None:
    """Print the JSON schema of a document or file of this program.

    history: one line of a program's file. The others are what commands print with --json: doctor, faults,
    verify, and judgement for both judge and rerun.
    """
    say(json.dumps(make_schema(name), indent=2))
