"""Conversations as a document."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError

from pymllm.cli.protocol_document import make_document, protocol_check_schema
from pymllm.conformance.protocol_check import check_protocol

EXAMPLE = Path(__file__).parents[3] / "examples" / "protocol" / "page_cache.py"


def test_a_right_program_and_a_wrong_one_keep_to_the_schema(tiny_program: Callable[..., str]) -> None:
    """Who it is, what was said and answered, and for what is wrong what to do."""
    right = check_protocol(f"command:{shlex.join([sys.executable, '-S', str(EXAMPLE)])}")
    wrong = check_protocol(f"command:{tiny_program('hello', 'no-claim')}")
    document = make_document([(right, None), (wrong, "runs/x.txt")])
    validator = Draft202012Validator(protocol_check_schema())
    validator.validate(document)
    assert (document["verdict"], document["exit_status"]) == ("unknown", 3)
    first, second = document["programs"]
    assert (first["program"]["name"], first["program"]["clock"], first["problems"]) == ("page-cache", True, 0)
    assert first["answers"] == first["exchanges"][-1]["line"]
    assert not any("problem" in exchange for exchange in first["exchanges"])
    (blamed,) = [found for found in second["exchanges"] if "flying" in found.get("problem", "")]
    assert blamed["advice"].startswith("there are pool")
    assert second["conversation"] == "runs/x.txt"
    with pytest.raises(ValidationError):
        validator.validate({**document, "verdict": "violated"})


def test_without_a_hello_there_is_no_program(tiny_program: Callable[..., str]) -> None:
    """Null, and what came instead of it."""
    document = make_document([(check_protocol(f"command:{tiny_program('hello', 'garbage')}"), None)])
    Draft202012Validator(protocol_check_schema()).validate(document)
    (row,) = document["programs"]
    assert row["program"] is None
    assert row["exchanges"][0]["answered"] == "no JSON"


def test_of_right_programs_everything_holds() -> None:
    """The status is 0; no program at all is right, too."""
    assert make_document([])["exit_status"] == 0
