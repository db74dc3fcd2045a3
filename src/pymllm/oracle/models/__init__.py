"""Models: what each kind of implementation must do, predicted; nothing is judged here."""

from __future__ import annotations

from pymllm.errors import ProgramError
from pymllm.history.files import Config


def read_policy(config: Config) -> str:
    """Return the policy for blocks without references; raise `ProgramError` if there is no such policy."""
    policy = config.get("policy")
    if policy not in ("lru", "release", "ref_zero"):
        raise ProgramError(f"the configuration's policy is {policy!r}; it must be lru, release or ref_zero")
    return str(policy)
