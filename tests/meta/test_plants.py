"""Each bug of the catalogue that these classes can have is planted, and a committed test must notice."""

from __future__ import annotations

import re

import pytest
from noticing import Outcome, run_with_faults
from plant import Plant
from plant_table import PLANTS, TITLES, number_of
from plants_page import PAGE, render
from unplanted import UNPLANTED

from pymllm.errors import InvariantViolation

LAW = re.compile(r"\b(?:[XAPKHRSMCE]\d+|section \d)\b")

each_plant = pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)


@pytest.fixture(scope="module")
def chosen(request: pytest.FixtureRequest) -> list[Plant]:
    """The plants whose tests are about to run."""
    specs = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {params["plant"].name for params in specs if isinstance(params.get("plant"), Plant)}
    return [plant for plant in PLANTS if plant.name in wanted]


@pytest.fixture(scope="module")
def sound(chosen: list[Plant], pytestconfig: pytest.Config) -> dict[str, Outcome]:
    """What the noticing tests do with the code as it is, by node id."""
    tests = {plant.noticed_by: plant.noticed_by for plant in chosen}
    return run_with_faults(dict.fromkeys(tests, ()), tests, pytestconfig.option.hypothesis_seed)


@pytest.fixture(scope="module")
def faulty(chosen: list[Plant], pytestconfig: pytest.Config) -> dict[str, Outcome]:
    """What each plant's noticing test does while the bug is there, by the plant's name."""
    faults = {plant.name: plant.edits for plant in chosen}
    tests = {plant.name: plant.noticed_by for plant in chosen}
    return run_with_faults(faults, tests, pytestconfig.option.hypothesis_seed)


@each_plant
def test_the_noticing_test_passes_without_the_bug(plant: Plant, sound: dict[str, Outcome]) -> None:
    """It is a test of the law, and not one that always fails."""
    outcome = sound[plant.noticed_by]
    assert outcome.passed, f"{plant.noticed_by} is not there or fails anyway: {outcome.error!r}"


@each_plant
def test_the_planted_bug_is_noticed(plant: Plant, faulty: dict[str, Outcome]) -> None:
    """A test fails while the bug is there, and it fails because a law is broken."""
    outcome = faulty[plant.name]
    assert not outcome.passed, f"{plant.noticed_by} passes although {TITLES[plant.id]!r} is planted"
    assert isinstance(outcome.error, plant.counts), f"it broke otherwise: {outcome.error!r}"


@each_plant
def test_the_notice_is_about_a_law_that_the_bug_breaks(plant: Plant, faulty: dict[str, Outcome]) -> None:
    """The law of the violation, or of the noticing test, was named beforehand."""
    outcome = faulty[plant.name]
    if isinstance(outcome.error, InvariantViolation):
        assert outcome.error.law in plant.laws
    else:
        assert set(LAW.findall(outcome.docstring)) & set(plant.laws), outcome.docstring


def test_every_entry_is_planted_or_has_a_reason() -> None:
    """All 110 entries are there, each in one system at least or in the list of reasons."""
    listed = sorted([*{plant.id for plant in PLANTS}, *UNPLANTED], key=number_of)
    assert listed == list(TITLES)
    assert len(listed) == 110


def test_plants_have_names_of_their_own() -> None:
    """Two plants of one entry say in which systems they are."""
    names = [plant.name for plant in PLANTS]
    assert len(set(names)) == len(names)


def test_the_page_says_what_the_table_says() -> None:
    """docs/plants.md is up to date: python tests/meta/plants_page.py writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == render()
