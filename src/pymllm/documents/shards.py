"""The record of a shard of ``pymllm verify``, ``compare`` or ``replay``."""

from __future__ import annotations

from pymllm.instrument.documents import Document, Row


class BrokenLaw(Row, frozen=True):
    """A law broken in a task, with the name of the implementation that broke it."""

    name: str
    law: str
    message: str


class ShardDocument(Document, frozen=True, kw_only=True, tag="pymllm.shard"):
    """The document of a shard of verify, compare or replay: finished tasks, and broken laws.

    ``file`` has the results. ``tasks`` are those of this shard, ``total`` those of all shards; ``kept`` of
    the tasks that are ``done`` were in the file before. The verdict is that of all shards together, which
    the same command gives with the lines of all of them.
    """

    command: str
    shard: str
    file: str
    tasks: int
    total: int
    done: int
    kept: int
    seconds: float
    broken: tuple[BrokenLaw, ...] = ()
    problems: tuple[str, ...] = ()
    interrupted: bool = False
    exit_status: int = 0
