"""Every schema can be printed, docs/schemas has those to copy, and what is written keeps to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator, ValidationError

from pymllm.adapters.registry import OWN, load_adapter, make_adapter
from pymllm.cli import main
from pymllm.cli.schema import SCHEMAS, make_schema
from pymllm.history.files import dump_history
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.registry import MACHINES, MachineEntry, load_machine, machines_for

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
COPIED = ("history", "ledger", "protocol", "vectors")
"""Schemas of the files that other projects copy or write; the site's build makes all others."""


def test_only_schemas_to_copy_are_kept() -> None:
    """A file that nothing makes would never change again."""
    assert sorted(path.name for path in FOLDER.iterdir()) == [f"{name}.schema.json" for name in COPIED]


@pytest.mark.parametrize("name", COPIED)
def test_a_kept_schema_is_that_of_the_code(name: str) -> None:
    """After a change: pymllm schema NAME > docs/schemas/NAME.schema.json."""
    assert json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")) == make_schema(name)


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_schema_is_described_by_a_noun(name: str) -> None:
    """The help of ``pymllm schema`` shortens the first sentence of each document."""
    assert SCHEMAS[name].split()[0] in ("a", "the")


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.usefixtures("builder")
def test_the_site_has_each_schema_as_it_is_printed(name: str) -> None:
    """And each is a valid one."""
    from schemas_page import make_schema_files

    printed = CliRunner().invoke(main, ["schema", name])
    assert make_schema_files()[f"schemas/{name}.schema.json"] == printed.stdout
    Draft202012Validator.check_schema(json.loads(printed.stdout))


@pytest.mark.parametrize(
    "entry", [entry for entries in MACHINES.values() for entry in entries], ids=lambda entry: entry.name
)
def test_every_line_of_a_history_keeps_to_the_schema(entry: MachineEntry) -> None:
    """Every line of a history keeps to the schema, for each machine with every adapter that it can drive."""
    validator = Draft202012Validator(make_schema("history"))
    machine = load_machine(entry)
    lines = 0
    for own in OWN:
        adapter = load_adapter(own)
        driven = (
            dict(config)
            for config in reversed(adapter.CONFIGURATIONS)
            if entry in machines_for(adapter.KIND, make_adapter(own.name, dict(config)).capabilities)
        )
        config = next(driven, None)
        if config is None:
            continue
        history = drive(make_machine(machine, own.name, config), 1, 25).examiner.history
        for line in dump_history(history):
            validator.validate(json.loads(line))
            lines += 1
    assert lines > 20


def test_a_line_with_something_else_in_it_is_refused() -> None:
    """The test above can fail."""
    validator = Draft202012Validator(make_schema("history"))
    validator.validate({"step": 1, "op": {"op": "alloc", "tokens": 4}})
    for line in ({"step": 0, "op": {"op": "alloc", "tokens": 4}}, {"step": 1, "op": {"op": "alloc"}}):
        with pytest.raises(ValidationError):
            validator.validate(line)
