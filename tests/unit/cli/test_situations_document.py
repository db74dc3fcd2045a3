"""The JSON document of the situations."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator, ValidationError

from pymllm.cli.situations_document import make_document, situations_schema
from pymllm.oracle.situations import SITUATIONS, situations_of


def test_the_document_keeps_to_its_schema() -> None:
    """All of them; a kind that is none does not."""
    validator = Draft202012Validator(situations_schema())
    document = make_document(SITUATIONS)
    validator.validate(document)
    document["situations"][0]["kind"] = "cells"
    with pytest.raises(ValidationError):
        validator.validate(document)


def test_a_row_says_what_it_takes() -> None:
    """Capabilities by name, settings in words."""
    (one,) = (one for one in situations_of("prefix") if one.name == "an edge node is split")
    (row,) = make_document([one])["situations"]
    assert row == {
        "name": "an edge node is split",
        "kind": "prefix",
        "of_engine": False,
        "laws": ["S5", "R10"],
        "bugs": ["B23", "B25"],
        "capabilities": ["inspect"],
        "configuration": [
            "a cache that keeps something",
            "a window of several pages",
            "nodes of several pages",
        ],
    }
