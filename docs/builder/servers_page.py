"""Print the laws of servers: ``python docs/builder/servers_page.py``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))  # also where the package is not installed

from pymllm.probing.laws import LAWS  # noqa: E402
from pymllm.watching import laws as streams  # noqa: E402

__all__ = ["PAGE", "make_servers_page"]

PAGE = ROOT / "docs" / "specification" / "servers.md"
_TITLES = {
    "Why": "Why",
    "Choices": "A server may choose",
    "Caller": "The caller owes",
    "Engines": "In the field",
}
_HEAD = """\
# Servers

The laws of a running server, which [`pymllm probe`](../probe.md) judges from requests and answers alone.
A request is sent *warm*, like any user's request, and *cold*, where no cache can serve it. These laws belong
to no kind of class, so they have ids of their own. The [laws of event streams](#w1) follow them.
This page is printed from `pymllm.probing.laws` and `pymllm.watching.laws`
(`python docs/builder/servers_page.py`).
"""
_STREAMS = """\
W1 to W8 are about the stream of events that reports the blocks of a server's cache, as judged by
[`pymllm watch`](../watch.md); W8 is also about the requests that `pymllm probe --events` makes.
A *producer* is one rank or worker with numbers of its own. A block is *there* if its producer's events have
stored it and not removed it.
"""


def make_servers_page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for law in (*LAWS.values(), *streams.LAWS.values()):
        parts += [_STREAMS] if law.id == "W1" else []
        sentence, _, rest = law.text.partition("\n")
        for name, title in _TITLES.items():
            rest = re.sub(rf"^{name}\n-+\n", f"*{title}.* ", rest, flags=re.MULTILINE)
        parts.append(f"## {law.id}\n\n**{sentence}**\n{rest}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(make_servers_page(), encoding="utf-8")
