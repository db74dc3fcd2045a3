"""A shard of some work: the part of a list of tasks for one of several independent machines.

Every machine makes the whole list, deals it out in the same way, and keeps its own hand. So the parts are
disjoint, together they are the list, and no part depends on who does another, or when.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pymllm.errors import UsageError
from pymllm.text_file import cut

MOST = 1_000_000
"""The greatest number of shards of one work."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """One of several parts of some work, numbered from 1."""

    number: int
    count: int
    origin: str = field(default="--shard", compare=False, repr=False)
    """The text, typed or from the environment, that asked for the shard."""

    @property
    def asked(self) -> str:
        """The option or variable that asked for the shard, for messages about it."""
        return f"{self.origin}{' ' if self.origin.startswith('-') else '='}{self}"

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def keep(self, items: Iterable[Item], weight: Callable[[Item], int] = lambda item: 1) -> Iterator[Item]:
        """Yield the items of this shard from a list, perhaps endless, in their order.

        Each item goes to the shard that has the least weight so far, the first of several: the weights of
        two shards differ by no more than the heaviest item.
        """
        loads = [(0, number) for number in range(1, self.count + 1)]  # which is a heap
        for item in items:
            load, number = loads[0]
            heapq.heapreplace(loads, (load + weight(item), number))
            if number == self.number:
                yield item


def read_shard(text: str, environ: Mapping[str, str]) -> Shard:
    """Read ``I/N``, or a scheduler's variables for ``env``, or only for I in ``env/N``.

    `UsageError` names what is wrong, and what to write.
    """
    text = text.strip()
    if found := re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII):
        return _checked(int(found[1]), int(found[2]), text)
    if found := re.fullmatch(r"env(?:/(\d{1,9}))?", text, re.ASCII):
        return _find(None if found[1] is None else int(found[1]), environ)
    raise UsageError(
        f"{cut(text)!r} is no shard; write I/N with I in 1..N, as 1/3, or env for a scheduler's variables"
    )


def _checked(number: int, count: int, source: str) -> Shard:
    if not 1 <= count <= MOST:
        raise UsageError(f"{source}: there are {count} shards; their number must be in 1..{MOST}")
    if not 1 <= number <= count:
        raise UsageError(f"{source}: {number} is no shard of {count}; shards are counted from 1 to {count}")
    return Shard(number, count)


# -- schedulers --------------------------------------------------------------------------------------------

_SLURM = "SLURM_ARRAY_TASK_ID"
_KUBERNETES = "JOB_COMPLETION_INDEX"
_GITLAB = "CI_NODE_INDEX"


def _find(count: int | None, environ: Mapping[str, str]) -> Shard:
    """Return the number from a scheduler's variables; raise an error if two schedulers disagree."""
    readers = {_SLURM: _read_slurm, _KUBERNETES: _read_kubernetes, _GITLAB: _read_gitlab}
    found = {name: reader(count, environ) for name, reader in readers.items() if environ.get(name)}
    asked = _asked(count)
    if not found:
        raise UsageError(f"{asked}: none of {', '.join(readers)} is set; write I/N, such as 1/3")
    if len({*found.values()}) > 1:
        said = " and ".join(f"{name} says {shard}" for name, shard in found.items())
        raise UsageError(f"{asked}: {said}; write I/N, such as 1/3")
    return next(iter(found.values()))


def _asked(count: int | None) -> str:
    return "env" if count is None else f"env/{count}"


def _read_slurm(count: int | None, environ: Mapping[str, str]) -> Shard:
    """Return the shard in a Slurm array that is numbered 1-N or 0-(N-1).

    With N given, it may be a part of such an array, as one that is sent again for the tasks that failed; the
    numbers of the whole are then 1-N, for nothing tells where the whole began.
    """
    task = _number(_SLURM, environ, count)
    if count is not None:
        return _checked(task, count, f"env/{count}: {_SLURM}={task}, of an array that is numbered 1-{count}")
    first, last, size = (_number(f"SLURM_ARRAY_TASK_{it}", environ, count) for it in ("MIN", "MAX", "COUNT"))
    if first not in (0, 1) or last - first + 1 != size:
        raise UsageError(
            f"env: a Slurm array of {size} tasks from {first} to {last} is not numbered 1-N; "
            "number it so, or write env/N with the number of all shards"
        )
    return _checked(task - first + 1, size, f"env: {_SLURM}={task}")


def _read_kubernetes(count: int | None, environ: Mapping[str, str]) -> Shard:
    index = _number(_KUBERNETES, environ, count)
    if count is None:
        raise UsageError(f"env: {_KUBERNETES}={index} says not of how many; write env/N, N the completions")
    return _checked(index + 1, count, f"env/{count}: {_KUBERNETES}={index}, which counts from 0")


def _read_gitlab(count: int | None, environ: Mapping[str, str]) -> Shard:
    number, total = (_number(it, environ, count) for it in (_GITLAB, "CI_NODE_TOTAL"))
    if count not in (None, total):
        raise UsageError(f"env/{count}: CI_NODE_TOTAL={total}; write env, or the same number")
    return _checked(number, total, f"{_asked(count)}: {_GITLAB}={number}")


def _number(name: str, environ: Mapping[str, str], count: int | None) -> int:
    text = environ.get(name)
    if text is None:
        raise UsageError(f"{_asked(count)}: {name} is not set; write I/N, such as 1/3")
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        wrong = f"{name}={cut(text)!r} is no number of a shard"
        raise UsageError(f"{_asked(count)}: {wrong}; write I/N, such as 1/3")
    return int(text)
