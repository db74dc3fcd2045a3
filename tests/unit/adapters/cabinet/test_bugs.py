"""The table of bugs: each once, each with its source."""

from __future__ import annotations

import re

import pytest

from pymllm.adapters.cabinet.bug import CODE, COMMIT, RUN, SUMMARY, THREAD, THREAD_AND_RUN, Bug
from pymllm.adapters.cabinet.bugs import BUGS, bug_of, plant
from pymllm.adapters.cabinet.fault import SEARCHERS, Fault

LINK = r"https://github\.com/[\w.-]+/[\w.-]+/(issues/\d+|pull/\d+|commit/[0-9a-f]{40}|blob/[0-9a-f]{40}/[\w/]+\.py)"

each_bug = pytest.mark.parametrize("bug", BUGS.values(), ids=lambda bug: bug.id)


def test_each_is_there_once_and_in_order() -> None:
    """Under its id, and with a title of its own."""
    numbers = [int(id[1:]) for id in BUGS]
    assert numbers == sorted(set(numbers))
    assert [bug.id for bug in BUGS.values()] == list(BUGS)
    titles = [bug.title for bug in BUGS.values()]
    assert len(set(titles)) == len(titles) == 137


@each_bug
def test_a_bug_can_be_read_alone_and_followed(bug: Bug) -> None:
    """A title that refers to no other, two sentences, and links that are absolute."""
    assert re.fullmatch(r"B\d+", bug.id)
    assert 15 <= len(bug.title) <= 90
    assert not bug.title.endswith(".")
    assert not re.search(r"^(the )?same\b|\bas above\b", bug.title.lower())
    assert bug.engine
    assert bug.links
    assert [link for link in bug.links if not re.fullmatch(LINK, link)] == []
    assert all(text.endswith(".") and len(text) > 25 for text in (bug.mechanism, bug.seen))
    assert bug.evidence in (CODE, COMMIT, RUN, SUMMARY, THREAD, THREAD_AND_RUN)


def test_a_plant_bears_the_title_of_its_bug() -> None:
    """Whatever system it is planted in; and nothing else gets lost."""
    more = {"settings": {"a": 1}, "searchers": ("sweep",), "note": "so"}
    expected = Fault("B79-requests", BUGS["B79"].title, ("C1",), ("requests",), **more)
    assert plant("B79-requests", ("C1",), ("requests",), (), **more) == expected
    assert plant("B01", ("R2",), ("radix",), ()) == Fault("B01", BUGS["B01"].title, ("R2",), ("radix",))
    assert plant("B01", ("R2",), ("radix",), ()).searchers == SEARCHERS


def test_a_fault_knows_its_bug() -> None:
    """A stranger's fault with an id like ours is no bug of ours."""
    assert bug_of(plant("B79-requests", ("C1",), ("requests",), ())) is BUGS["B79"]
    assert bug_of(Fault("B79", "something else", ("C1",), ("requests",))) is None
    assert bug_of(Fault("mine", "something else", ("C1",), ("requests",))) is None
