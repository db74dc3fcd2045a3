"""Which situations of blocks and of whole requests a configuration must reach."""

from __future__ import annotations

from recorded_requests import CONFIG

from pymllm.history.files import Header
from pymllm.oracle.situations import expected_situations

CLAIMS = ("callbacks", "faults", "mamba", "refusals")
ALL = ("faults", "inspect", "mamba", "pool", "refusals")


def test_more_is_expected_of_who_can_do_more() -> None:
    """Each capability and setting adds its own, and takes nothing away."""
    config: dict[str, int | str | bool | None] = {"policy": "lru", "slots": 3}
    everything = expected_situations(Header("x", "blocks", config, CLAIMS))
    for fewer in (CLAIMS[1:], CLAIMS[:1], CLAIMS[:2]):
        assert expected_situations(Header("x", "blocks", config, fewer)) <= everything
    assert "a held descendant is deregistered" not in everything
    one_slot = expected_situations(Header("x", "blocks", {**config, "slots": 1}, CLAIMS))
    assert everything - one_slot >= {"the older of several slots goes"}
    off = expected_situations(Header("x", "blocks", {**config, "caching": False}, CLAIMS))
    assert "too few slots can be evicted" in off
    assert "a hash is taken" not in off


def expected(*claims: str, **config: int | str | None) -> frozenset[str]:
    return expected_situations(Header("x", "requests", {**CONFIG, **config}, claims))


def test_without_claims_only_traffic_is_expected() -> None:
    """X1, X2: neither misuse, nor failures, nor states."""
    bare = expected(policy="ref_zero", mamba_slots=0)
    assert "a prompt shares cached blocks" in bare
    assert not {"a malformed call is refused", "a forward pass fails", "a commit fails"} & bare
    assert not {"a request resumes from a cached state", "cached blocks are evicted to make room"} & bare
    assert bare < expected(*ALL)


def test_each_setting_adds_what_it_makes_possible() -> None:
    """C3, C6, C7: collisions, evictions, and slots that run out."""
    assert expected(*ALL, hash_digits=2) - expected(*ALL) == {"a hash names a block of other content"}
    assert expected(*ALL) - expected(*ALL, mamba_slots=64) == {
        "a commit runs out of slots",
        "a commit takes slots from released blocks",
    }
    assert expected(*ALL) - expected(*ALL, mamba_slots=1) == {"a step keeps several states"}
    assert expected(*ALL) - expected(*ALL, policy="ref_zero") == {
        "cached blocks are evicted to make room",
        "cached blocks are evicted for a decoding request",
        "a state goes with its block",
        "a commit takes slots from released blocks",
    }
    assert expected(*ALL, policy="ref_zero", mamba_slots=0) > expected(*ALL, caching=False)
    assert "a prompt shares cached blocks" not in expected(*ALL, caching=False, hash_digits=2)
    assert "no row is left for a request" in expected(*ALL, caching=False)
