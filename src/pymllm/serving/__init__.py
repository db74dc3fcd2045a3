"""An embedded server: a small model on this package's caches, behind an OpenAI-compatible API."""

from __future__ import annotations

import pymllm.torch_needed  # noqa: F401  # before a module asks for torch itself
