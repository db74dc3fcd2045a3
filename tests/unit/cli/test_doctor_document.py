"""The schema of what doctor prints."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator, ValidationError

from pymllm.cli.doctor_document import doctor_schema
from pymllm.cli.doctor_facts import look_at_machine
from pymllm.history.records import encode


def test_a_document_fits_and_a_changed_one_does_not() -> None:
    """Nothing is left out where it is unknown, and nothing is added."""
    validator = Draft202012Validator(doctor_schema())
    document = json.loads(json.dumps(encode(look_at_machine())))
    validator.validate(document)
    for key in ("torch", "nvml_reason", "packages"):
        with pytest.raises(ValidationError):
            validator.validate({name: value for name, value in document.items() if name != key})
    with pytest.raises(ValidationError):
        validator.validate({**document, "more": 1})
