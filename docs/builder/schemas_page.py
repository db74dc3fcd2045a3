"""The JSON schemas, as a table that leads to the files."""

from __future__ import annotations

from pymllm.cli.schema import SCHEMAS

__all__ = ["make_schemas_page"]

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
