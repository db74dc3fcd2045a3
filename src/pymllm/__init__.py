"""Know that LLM cache memory is right, and fast.

Importing this package is light: torch is loaded by ``pymllm.mem_cache``, Hypothesis and NVML
only by the rooms that use them, and `check` with its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pymllm.checking import check as check

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load `check` when it is asked for."""
    if name == "check":
        from pymllm.checking import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
