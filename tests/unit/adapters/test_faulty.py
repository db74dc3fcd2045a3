"""What the wrong implementations have in common."""

from __future__ import annotations

import inspect

import pytest

from pymllm.adapters.faulty import Faulty, configured
from pymllm.adapters.registry import FAULTY, OWN, AdapterEntry, find_adapter, load_adapter, make_adapter
from pymllm.oracle.laws import find_law

each_entry = pytest.mark.parametrize("entry", FAULTY, ids=lambda entry: entry.name)


@each_entry
def test_it_breaks_a_law_that_its_sound_sibling_claims(entry: AdapterEntry) -> None:
    """An accusation of a law that nobody promised to keep would prove nothing."""
    faulty = load_adapter(entry)
    assert issubclass(faulty, Faulty)
    law = find_law(faulty.BREAKS)
    assert faulty.KIND in law.kinds
    for config in faulty.CONFIGURATIONS:
        assert law.is_claimed_by(make_adapter(faulty.SOUND, dict(config)).capabilities)


@each_entry
def test_it_is_its_sound_sibling_but_for_the_fault(entry: AdapterEntry) -> None:
    """It claims the same in configurations of the same class, and is not looked into."""
    faulty, sibling = load_adapter(entry), find_adapter(faulty_sound(entry))
    assert sibling in OWN
    sound = load_adapter(sibling)
    for config in faulty.CONFIGURATIONS:
        assert config in sound.CONFIGURATIONS
        wrong, right = make_adapter(entry.name, dict(config)), make_adapter(sibling.name, dict(config))
        assert (wrong.kind, wrong.capabilities) == (right.kind, right.capabilities)
        assert wrong.audit() == ()


@each_entry
def test_the_registry_says_what_is_wrong(entry: AdapterEntry) -> None:
    """One line, the same as in the class."""
    said = inspect.getdoc(load_adapter(entry))
    assert said is not None
    assert said == f"{entry.summary[0].upper()}{entry.summary[1:]}."


def test_configured_keeps_what_agrees() -> None:
    """Several settings must all agree; a setting that is missing does not."""
    ones, fours = {"page_size": 1, "pool": "none"}, {"page_size": 4, "pool": "none"}
    configurations = (ones, fours, {"page_size": 4})
    assert configured(configurations, page_size=4, pool="none") == (fours,)
    assert configured(configurations) == configurations


def faulty_sound(entry: AdapterEntry) -> str:
    """Name of the sound sibling."""
    faulty = load_adapter(entry)
    assert issubclass(faulty, Faulty)
    return faulty.SOUND
