"""The peak memory of this process."""

from __future__ import annotations


def peak_rss_bytes(platform: str) -> int | None:
    """Return the peak resident bytes of this process; ``None`` on ``win32``, which does not report them."""
    if platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform == "darwin" else peak * 1024  # kilobytes but on macOS
