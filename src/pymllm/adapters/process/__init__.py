"""Programs in any language as adapters: operations and outcomes as lines of JSON (docs/protocol.md)."""

from __future__ import annotations

from pymllm.adapters.process.messages import LINE_LIMIT, PROTOCOL
from pymllm.adapters.process.verdicts import VERDICTS

__all__ = ["LINE_LIMIT", "PROTOCOL", "VERDICTS"]
