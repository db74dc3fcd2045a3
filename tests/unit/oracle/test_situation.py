"""A situation is expected where its capabilities are claimed and its conditions hold."""

from __future__ import annotations

from pymllm.oracle.situation import Condition, Situation, make_situations

PAGED = Condition("pages of several tokens", lambda config: config.get("page_size") != 1)
CACHING = Condition("prefix caching", lambda config: config.get("caching") is not False)


def test_situations_are_made_from_rows() -> None:
    """Laws and bugs by their ids; what they share is said once."""
    one, two = make_situations(
        "slots",
        ("pages merge", "A4 X4", "B95 B97"),
        ("pages wait", "A4"),
        needs="merges groups",
        when=(PAGED,),
        of_engine=True,
    )
    needs = frozenset({"merges", "groups"})
    laws, bugs = ("A4", "X4"), ("B95", "B97")
    assert one == Situation("pages merge", "slots", laws, bugs, needs, (PAGED,), of_engine=True)
    assert two == Situation("pages wait", "slots", ("A4",), (), needs, (PAGED,), of_engine=True)


def test_every_capability_and_every_condition_counts() -> None:
    """One that is missing is enough."""
    (one,) = make_situations("slots", ("a", "A1"), needs="merges groups", when=(PAGED, CACHING))
    paged = {"page_size": 4}
    assert one.is_expected_of(paged, ["groups", "merges", "pool"])
    assert not one.is_expected_of(paged, ["groups"])
    assert not one.is_expected_of({"page_size": 1}, ["groups", "merges"])
    assert not one.is_expected_of({**paged, "caching": False}, ["groups", "merges"])


def test_a_situation_without_conditions_is_expected_of_everybody() -> None:
    """Whatever the configuration is like."""
    (one,) = make_situations("slots", ("a", "A1"))
    assert one.is_expected_of({}, ())
