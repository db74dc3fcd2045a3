"""What a run must reach depends on what the context is, and on what its adapter claims."""

from __future__ import annotations

from recorded_requests import CONFIG

from pymllm.oracle.history import Header
from pymllm.oracle.request_situations import expected_situations

CLAIMS = ("faults", "inspect", "mamba", "pool", "refusals")


def expected(*claims: str, **config: int | str | None) -> frozenset[str]:
    return expected_situations(Header("x", "requests", {**CONFIG, **config}, claims))


def test_without_claims_only_traffic_is_expected() -> None:
    """X1, X2: neither misuse, nor failures, nor states."""
    bare = expected(policy="ref_zero", mamba_slots=0)
    assert "a prompt shares cached blocks" in bare
    assert not {"a malformed call is refused", "a forward pass fails", "a commit fails"} & bare
    assert not {"a request resumes from a cached state", "cached blocks are evicted to make room"} & bare
    assert bare < expected(*CLAIMS)


def test_each_setting_adds_what_it_makes_possible() -> None:
    """C3, C6, C7: collisions, evictions, and slots that run out."""
    assert expected(*CLAIMS, hash_digits=2) - expected(*CLAIMS) == {"a hash names a block of other content"}
    assert expected(*CLAIMS) - expected(*CLAIMS, mamba_slots=64) == {
        "a commit runs out of slots",
        "a commit takes slots from released blocks",
    }
    assert expected(*CLAIMS) - expected(*CLAIMS, mamba_slots=1) == {"a step keeps several states"}
    assert expected(*CLAIMS) - expected(*CLAIMS, policy="ref_zero") == {
        "cached blocks are evicted to make room",
        "cached blocks are evicted for a decoding request",
        "a state goes with its block",
        "a commit takes slots from released blocks",
    }
    assert expected(*CLAIMS, policy="ref_zero", mamba_slots=0) > expected(*CLAIMS, caching=False)
    assert "a prompt shares cached blocks" not in expected(*CLAIMS, caching=False, hash_digits=2)
    assert "no row is left for a request" in expected(*CLAIMS, caching=False)
