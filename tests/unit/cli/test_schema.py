"""``pymllm schema``: the published schemas."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from pymllm.cli import main
from pymllm.cli.schema import SCHEMAS, make_schema


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_printed_and_is_one(name: str) -> None:
    """Draft 2020-12."""
    result = CliRunner().invoke(main, ["schema", name])
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == make_schema(name)
    Draft202012Validator.check_schema(make_schema(name))
