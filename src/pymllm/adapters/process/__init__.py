"""Adapters that are programs in any language, which exchange lines of JSON (docs/protocol.md)."""

from __future__ import annotations

from pymllm.adapters.process.channel import VERDICTS
from pymllm.adapters.process.messages import LINE_LIMIT, PROTOCOL

__all__ = ["LINE_LIMIT", "PROTOCOL", "VERDICTS"]
