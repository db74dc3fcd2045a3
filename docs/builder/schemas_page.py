"""The JSON schemas: a file for each, and the table that leads to them."""

from __future__ import annotations

import json

from pymllm.cli.schema import SCHEMAS, make_schema

__all__ = ["make_schema_files", "make_schemas_page"]

_HEAD = """\
# Schemas

Each document that a command prints with `--json`, and each file that it writes, has a JSON schema. A field
never changes its meaning without a new version; new fields may come. `pymllm schema NAME` prints the schema
of the installed version.

| name | describes | schema |
| --- | --- | --- |
"""


def make_schemas_page() -> str:
    """Return the page."""
    rows = (
        f"| `{name}` | {what} | [{name}.schema.json](schemas/{name}.schema.json) |"
        for name, what in SCHEMAS.items()
    )
    return _HEAD + "\n".join(rows) + "\n"


def make_schema_files() -> dict[str, str]:
    """Return the text of each schema, as `pymllm schema` prints it, by its place below ``docs``."""
    return {f"schemas/{name}.schema.json": json.dumps(make_schema(name), indent=2) + "\n" for name in SCHEMAS}
