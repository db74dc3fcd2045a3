"""Where tests of sglang's adapters can run: not without it, and not with a version that they do not know."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest

from pymllm_peers.sglang.package import NEWER

try:
    _FOUND = version("sglang")
except PackageNotFoundError:
    _FOUND = "that is not installed"
_REASON = f"sglang {_FOUND} is not {NEWER}, which these tests know; tox -e peers installs it"

needs_sglang = pytest.mark.skipif(" " in _FOUND, reason=_REASON)
needs_sglang_newer = pytest.mark.skipif(_FOUND != NEWER, reason=_REASON)
