"""Workloads of requests, and the simulated engine that serves them.

Here live requests (`request`), where they come from (`source`), and the engine that drives the real
pools and caches with them (`engine`). Judging an implementation from outside does not live here.
"""

from __future__ import annotations

import pymllm.torch_needed  # noqa: F401  # before a module asks for torch itself
