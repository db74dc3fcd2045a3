"""The import of vLLM's cache classes without a GPU, and without modules that only a server needs.

vLLM is installed without its dependencies (`peers/constraints/peers-alone.txt`), as sglang is. While it is
loaded, names stand in for those that its caches import and do not use (`STAND_INS`), and packages whose
own ``__init__`` pulls the rest in are entered without it; `pymllm_peers.stand_ins` is how.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from pymllm_peers.installed import installed_version, require_known
from pymllm_peers.stand_ins import standing_in

VERSION = "0.33.0"
"""The version that the adapters were made for; peers/constraints/peers-alone.txt."""

KNOWN = (VERSION, "0.32.0", "0.31.0")
"""All versions that they were tried with, and need no other calls for."""

_ENVIRONMENT = "peers"  # of tox.ini, that installs it

STAND_INS: dict[str, str] = {
    "aiohttp": "requests to servers, which versions before 0.28 import here",
    "cbor2": "another way to spell what is hashed; the default is pickle",
    "regex": "patterns in names of classes",
    "uvloop": "a server's loop of events",
    "vllm.config": "the configuration of a server",
    "vllm.multimodal": "places of images in a prompt, which has none here",
    "vllm.sampling_params": "parameters of sampling",
    "vllm.v1.engine": "a server's requests as they arrive",
    "vllm.v1.hisparse": "sparse KV between device and host, which versions before 0.33 import here",
    "vllm.v1.metrics": "a server's metrics",
}
"""What is replaced while a module is imported, and what it is for."""

BARE_PACKAGES: dict[str, str] = {
    "vllm": "its __init__ sets up the environment of a server",
    "vllm.distributed": "its __init__ imports communication between processes",
    "vllm.v1.structured_output": "its __init__ imports compilers of grammars",
}
"""Packages that are entered without their ``__init__``."""


def require_version() -> None:
    """Refuse a version of vLLM unknown to the adapters, by `ImportError`."""
    require_known("vllm", KNOWN, _ENVIRONMENT)


def load_vllm(module: str) -> Any:
    """Import a module of vLLM, such as ``"v1.core.block_pool"``; `ImportError` where it is not installed."""
    name = f"vllm.{module}"
    if name in sys.modules:
        return sys.modules[name]
    installed_version("vllm", _ENVIRONMENT)
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    with standing_in(STAND_INS, BARE_PACKAGES, "vllm"):
        return importlib.import_module(name)
