"""The import of sglang's cache modules without a GPU, and without modules that only a GPU needs.

sglang is not installed with the package; `peers/constraints/peers.txt` has what its caches import. A server
imports more: kernels that are compiled for a GPU, quantised formats, metrics. While its cache modules are
loaded, names stand in for those (`STAND_INS`), and packages whose own ``__init__`` pulls the rest in are
entered without it (`BARE_PACKAGES`); `pymllm_peers.stand_ins` is how.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from pymllm_peers.installed import installed_version, require_known
from pymllm_peers.stand_ins import standing_in

NEWER, OLDER = "0.5.23", "0.5.15"
"""The versions that the adapters were made for; peers/constraints/peers-alone.txt and peers-older.txt."""

KNOWN = {NEWER: (NEWER, "0.5.22", "0.5.21"), OLDER: (OLDER,)}
"""All versions that the adapters for each were tried with, and need no other calls for."""

_ENVIRONMENTS = {NEWER: "peers", OLDER: "peers-older"}
"""Environments of tox.ini that install them."""

STAND_INS: dict[str, str] = {
    "fastapi": "serves requests, which versions before 0.5.8 import here",
    "sgl_kernel": "kernels, which versions before 0.5.11 import here",
    "triton": "compiles kernels, none of which is launched on a CPU",
    "tvm_ffi": "loads kernels of collective operations",
    "cuda": "maps device memory through the driver",
    "torchcodec": "decodes videos",
    "torchvision": "decodes images",
    "transformers": "loads models and their configurations",
    "IPython": "draws in notebooks",
    "sglang.kernels.ops": "kernels of formats, which versions before 0.5.23 import here",
    "sglang.srt.server_args": "a server's options, which older versions import here",
    "sglang.srt.mem_cache.allocator.hisparse": "sparse KV between device and host, by kernels",
    "sglang.srt.layers.attention.fla": "kernels of recurrent layers, likewise, before 0.5.13",
    "sglang.srt.layers.radix_attention": "a layer of models, which versions before 0.5.11 import here",
    "sglang.srt.metrics": "a server's metrics, likewise",
    "sglang.srt.layers.quantization": "formats of KV in device memory; no KV is stored here",
    "sglang.srt.observability.metrics_collector": "a server's metrics, which import its model configurations",
    "sglang.srt.managers.schedule_batch": "a server's requests; caches are called with keys here",
}
"""What is replaced while a module is imported, and what it is for."""

BARE_PACKAGES: dict[str, str] = {
    "sglang": "its __init__ imports the client language and transformers",
    "sglang.srt.configs": "its __init__ imports a module per model, and transformers",
}
"""Packages that are entered without their ``__init__``."""


def also_claimed(config: Mapping[str, int | str | bool | None]) -> frozenset[str]:
    """Return the additional capabilities of a configuration: what sglang does not promise, to compare it by.

    ``also`` names them, between blanks: a program with such a configuration shows what would break if sglang
    were held to them. Nobody searches with one.
    """
    return frozenset(str(config.get("also", "")).split())


def sglang_version(environment: str = _ENVIRONMENTS[NEWER]) -> str:
    """Return the installed version of sglang; `ImportError` names the environment of tox.ini to install."""
    return installed_version("sglang", environment)


def require_version(known: str) -> None:
    """Refuse a version of sglang unknown to an adapter, by `ImportError`.

    ``known`` is the one it was made for, `NEWER` or `OLDER`; `KNOWN` has the others.
    """
    require_known("sglang", KNOWN[known], _ENVIRONMENTS[known])


def load_sglang(module: str) -> Any:
    """Import a module of sglang's ``srt`` package, such as ``"mem_cache.radix_cache"``.

    `ImportError` where sglang is not installed or has no such module. torch loads what it knows of triton
    before, so that it never meets a stand-in; what stands in for other packages than sglang's own is gone
    again afterwards.
    """
    name = f"sglang.srt.{module}"
    if name in sys.modules:
        return sys.modules[name]
    version = sglang_version()
    importlib.import_module("torch._inductor.runtime.hints")
    with standing_in(STAND_INS, BARE_PACKAGES, "sglang"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise ImportError(f"sglang {version} has no module {name}") from None
