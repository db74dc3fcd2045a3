"""Where tests of sglang's adapters can run: not without it, and not with a version that they do not know."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest

from pymllm.adapters.sglang.package import NEWER

__all__ = ["needs_sglang", "needs_sglang_newer"]


def _missing(needed: str | None) -> str:
    """Return why tests cannot run here; empty where they can."""
    try:
        found = version("sglang")
    except PackageNotFoundError:
        return "sglang is not installed; tox -e peers installs it"
    if needed in (None, found):
        return ""
    return f"sglang {found} is not the version that this adapter knows, {needed}; tox -e peers installs it"


def _skip_unless(needed: str | None) -> pytest.MarkDecorator:
    reason = _missing(needed)
    return pytest.mark.skipif(bool(reason), reason=reason or "never")


needs_sglang = _skip_unless(None)
needs_sglang_newer = _skip_unless(NEWER)
