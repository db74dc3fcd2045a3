"""The most memory that this process ever had."""

from __future__ import annotations


def peak_rss_bytes(platform: str) -> int | None:
    """Read the most resident bytes that this process ever had; ``None`` on ``win32``, which does not tell."""
    if platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform == "darwin" else peak * 1024  # kilobytes but on macOS
