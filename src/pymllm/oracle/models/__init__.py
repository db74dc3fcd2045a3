"""Models: what each kind of implementation must do, predicted; nothing is judged here."""

from __future__ import annotations

from pymllm.errors import ProgramError
from pymllm.history.files import Config


def read_policy(config: Config) -> str:
    """Return what becomes of blocks without references; `ProgramError` where the policy is none."""
    policy = config.get("policy")
    if policy not in ("lru", "release", "ref_zero"):
        raise ProgramError(f"the configuration's policy is {policy!r}; it must be lru, release or ref_zero")
    return str(policy)
