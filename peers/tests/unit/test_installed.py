"""Versions of other projects' packages: what an adapter does not know is named, with the ways out."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from functools import partial

import pytest

from pymllm.adapters.entry import ANY_VERSION
from pymllm_peers.dynamo import radix_tree
from pymllm_peers.lmcache import chunks
from pymllm_peers.sglang import package as sglang
from pymllm_peers.vllm import package as vllm

REQUIRED = pytest.mark.parametrize(
    ("require", "package", "environment", "known"),
    [
        (partial(sglang.require_version, sglang.NEWER), "sglang", "peers", sglang.KNOWN[sglang.NEWER]),
        (partial(sglang.require_version, sglang.OLDER), "sglang", "peers-older", (sglang.OLDER,)),
        (vllm.require_version, "vllm", "peers", vllm.KNOWN),
        (radix_tree.load_radix_tree, "ai-dynamo-runtime", "peers-dynamo", (radix_tree.VERSION,)),
        (partial(chunks.load_allocators, "tensor"), "lmcache", "peers", (chunks.VERSION,)),
    ],
)


@REQUIRED
def test_another_version_is_accused_of_nothing(
    require: Callable[[], object],
    package: str,
    environment: str,
    known: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another version is refused, since its gaps would look like errors; the message names every way out."""
    monkeypatch.delenv(ANY_VERSION, raising=False)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
    with pytest.raises(ImportError) as refused:
        require()
    assert str(refused.value) == (
        f"{package} 0.0.1 is not the version that this adapter knows, {' or '.join(known)}; tox -e "
        f"{environment} installs {known[0]}, and PYMLLM_ANY_VERSION=1 tries this one as it is"
    )


@REQUIRED
def test_a_package_that_is_missing_is_named(
    require: Callable[[], object],
    package: str,
    environment: str,
    known: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A missing package is named before any import from it, for any version that may be tried."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setenv(ANY_VERSION, "1")
    with pytest.raises(ImportError, match=rf"^{package} is not installed; tox -e {environment} installs it$"):
        require()


@pytest.mark.parametrize("known", [sglang.KNOWN[sglang.NEWER], sglang.KNOWN[sglang.OLDER], vllm.KNOWN])
def test_every_version_that_was_tried_is_known(
    known: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And any other where a variable asks for it."""
    require = vllm.require_version if known is vllm.KNOWN else partial(sglang.require_version, known[0])
    monkeypatch.delenv(ANY_VERSION, raising=False)
    for version in known:
        monkeypatch.setattr(importlib.metadata, "version", lambda name, it=version: it)
        require()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
    monkeypatch.setenv(ANY_VERSION, "1")
    require()
