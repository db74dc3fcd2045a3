"""The part of an inference engine that holds requests and their memory between forward passes."""

from __future__ import annotations

import pymllm.torch_needed  # noqa: F401  # before a module asks for torch itself
