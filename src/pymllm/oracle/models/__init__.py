"""Models: what each kind of implementation must do, predicted; nothing is judged here."""

from __future__ import annotations

from pymllm.errors import ProgramError
from pymllm.history.files import Config


def is_lru(config: Config) -> bool:
    """Tell whether blocks stay cached without references; `ProgramError` where the policy is none."""
    policy = config.get("policy")
    if policy not in ("lru", "ref_zero"):
        raise ProgramError(f"the configuration's policy is {policy!r}; it must be lru or ref_zero")
    return bool(policy == "lru")
