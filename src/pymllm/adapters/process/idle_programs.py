"""Programs that run and have nothing to do: starting one takes longer than playing most of a search."""

from __future__ import annotations

import atexit
import os
from collections import defaultdict
from collections.abc import Sequence

from pymllm.adapters.process.conversation import Conversation

_KEPT = 4
"""Of one command: a program that is examined, and those beside which it is run again."""


class _Shelf:
    """There is one in a process; after a fork the child begins with an empty one."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.idle: defaultdict[tuple[str, ...], list[Conversation]] = defaultdict(list)


_shelf = _Shelf()


def _own_shelf() -> _Shelf:
    global _shelf
    if _shelf.owner != os.getpid():
        _shelf = _Shelf()
    return _shelf


def _key(command: Sequence[str]) -> tuple[str, ...]:
    """Tell commands apart, also those that name another program in another folder."""
    return os.getcwd(), *command


def lend(name: str, command: Sequence[str]) -> Conversation:
    """Return a program that has introduced itself, an idle one if there is one; raises as `Conversation`."""
    idle = _own_shelf().idle[_key(command)]
    return idle.pop() if idle else Conversation(name, command)


def take_back(conversation: Conversation, command: Sequence[str]) -> None:
    """Keep a program that nobody needs now, unless it cannot be asked any more or there are enough.

    In the folder in which it was lent, or it is taken for another one's.
    """
    idle = _own_shelf().idle[_key(command)]
    if not conversation.is_open:
        return
    if len(idle) < _KEPT:
        idle.append(conversation)
    else:
        conversation.finish()


@atexit.register
def end_idle_programs() -> None:
    """Let all of them end."""
    idle = _own_shelf().idle
    for conversations in idle.values():
        for conversation in conversations:
            conversation.finish()
    idle.clear()
