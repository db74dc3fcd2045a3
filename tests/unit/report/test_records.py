"""What is kept of a run: what makes no sense is refused as soon as it is made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pymllm.report.records import Curve, Figure, Gpu, Histogram, make_machine
from tests.unit.report.samples import HEADER, MACHINE


def test_numbers_that_json_has_not_are_refused_when_a_record_is_made() -> None:
    """Not when somebody reads it."""
    with pytest.raises(ValueError, match="inf is no number that JSON has"):
        Figure("x", float("inf"), "s")
    with pytest.raises(ValueError, match="nan"):
        Curve("x", "bytes", "seconds", (0.0,), (float("nan"),))
    with pytest.raises(ValueError, match="a value, or a reason"):
        Figure("x", 1.0, "s", reason="none")


@pytest.mark.parametrize(
    "make", [lambda: Curve("x", "s", "epochs", (1.0, 2.0), (1.0,)), lambda: Histogram("x", "s", (1.0,), ())]
)
def test_lists_that_belong_together_are_as_long(make: Any) -> None:
    """Or nobody knows which is which."""
    with pytest.raises(ValueError, match="must be as long"):
        make()


def test_buckets_are_in_order() -> None:
    """A quantile is read from the first one on."""
    with pytest.raises(ValueError, match=r"x: ends must rise, got 1\.0 after 2\.0; sort the buckets"):
        Histogram("x", "s", (2.0, 1.0), (1, 1))


def test_a_fingerprint_is_of_what_speed_depends_on() -> None:
    """Not of drivers, nor of memory, nor of why no GPU was seen."""
    same = make_machine(
        "Some Processor",
        8,
        64 << 30,
        "Linux x86_64",
        (Gpu("Some GPU", None, "590.2"),),
        "?",
        "rack 3",
    )
    assert same.fingerprint == MACHINE.fingerprint
    plain: dict[str, Any] = {
        "processor": "Some Processor", "cores": 8, "memory": 32 << 30, "system": "Linux x86_64",
        "gpus": MACHINE.gpus, "name": "rack 3",
    }  # fmt: skip
    others: list[dict[str, Any]] = [
        {"processor": "Another"}, {"cores": 4},
        {"system": "Linux aarch64"}, {"gpus": ()}, {"name": None},
    ]  # fmt: skip
    found = {make_machine(**{**plain, **change}).fingerprint for change in others}
    assert len({*found, MACHINE.fingerprint}) == len(others) + 1


def test_the_header_refuses_a_kind_that_is_no_word() -> None:
    """It becomes a part of a file's name."""
    with pytest.raises(ValueError, match="kind must be a word"):
        replace(HEADER, kind="../verify")
