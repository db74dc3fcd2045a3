"""Models that predict the required behaviour of each kind of implementation, without judging outcomes."""

from __future__ import annotations

from pymllm.errors import ProgramError
from pymllm.history.files import Config


def read_policy(config: Config) -> str:
    """Return the eviction policy for unreferenced blocks; raise `ProgramError` if there is no such policy."""
    policy = config.get("policy")
    if policy not in ("lru", "release", "ref_zero"):
        raise ProgramError(f"the configuration's policy is {policy!r}; it must be lru, release or ref_zero")
    return str(policy)
