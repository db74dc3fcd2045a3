"""Say that two threads use one object, where a call meets one that is under way."""

from __future__ import annotations

import threading


def refuse_other_thread(call: str, what: str, thread: int, doing: str) -> None:
    """Refuse a call that another thread's work was met by; do nothing where that work is this thread's own.

    Best effort: only what leaves a flag behind is met, which is a cache inside a pool or callback, an
    observer, a step, and a free group. Two calls that meet anywhere else are not noticed, and what they leave
    is undefined. Asked only where a call is refused anyway, so that others pay nothing. Laws: X6, A6.
    """
    here = threading.current_thread()
    if thread == here.ident:
        return
    names = {each.ident: each.name for each in threading.enumerate()}
    raise RuntimeError(
        f"{call} was called from thread {here.name!r} while thread {names.get(thread, thread)!r} {doing}: "
        f"two threads use one {what}, which one scheduler thread owns. Make all calls from that thread, "
        "or hold one lock around each"
    )
