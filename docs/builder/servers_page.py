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

What a running server must keep, as [`pymllm probe`](../probe.md) judges it from requests and answers alone.
A request is asked *warm*, as anybody asks, and *cold*, where no cache can serve it. These laws are of no kind
of class, so they stand beside the others, with ids of their own. Behind them stand the
[laws of event streams](#w1).
This page is printed from `pymllm.probing.laws` and `pymllm.watching.laws`
(`python docs/builder/servers_page.py`).
"""
_STREAMS = """\
W1 to W8 are about the stream of events by which a server tells what its cache has, as
[`pymllm watch`](../watch.md) judges it; W8 is about requests, too, as `pymllm probe --events` makes them.
A *producer* is one rank or worker with numbers of its own; *there* is what its events have stored and not
removed.
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
