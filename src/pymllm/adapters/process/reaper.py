"""A shell that ends the adapter programs of this process if the process dies without doing so.

A program has a process group of its own, so that it can be ended with all that it has started. What ends this
process from outside does not reach that group. The shell reads which groups there are from a pipe; the
pipe's end means that this process is gone.

A daemon leaves its group, but has the environment of what started it. Workers and programs have a mark in
theirs, by which the shell of the process at the top finds all that is left of them.
"""

from __future__ import annotations

import atexit
import os
import secrets
import subprocess
from contextlib import suppress
from typing import Final

MARK: Final = "PYMLLM_STARTED_BY"
"""The environment variable with the mark of the outermost process."""

# A daemon may start others while it is looked for, so that is done a few times.
_SCRIPT = """
groups=
while read -r verb group; do
  others=
  for other in $groups; do [ "$other" = "$group" ] || others="$others $other"; done
  groups=$others
  [ "$verb" = began ] && groups="$groups $group"
done
for group in $groups; do kill -s KILL -- "-$group"; done
for round in ${1:+1 2 3 4 5}; do
  left=$(grep -lsF "$1" /proc/[0-9]*/environ)
  [ "$left" ] || break  # the status of grep tells of files that are not ours to read, too
  for file in $left; do process=${file#/proc/}; kill -s KILL "${process%/environ}"; done
done
exit 0
"""


class Reaper:
    """A shell beside this process that ends with it, and then ends every registered process group.

    With a mark it also ends every process that has it.
    """

    def __init__(self, mark: str) -> None:
        self.owner = os.getpid()  # after a fork the child is somebody else
        self.groups: set[int] = set()
        self.mark = mark
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "sh", mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._shell.stdin is not None  # it was asked for
        self._pipe = self._shell.stdin

    @property
    def is_alive(self) -> bool:
        """Whether the reaper is this process's, and running."""
        return self.owner == os.getpid() and self._shell.poll() is None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of programs started here, with this process's mark or an inherited one."""
        return {**os.environ, MARK: self.mark} if self.mark else dict(os.environ)

    def note(self, group: int) -> None:
        """Register a process group to end."""
        self.groups.add(group)
        self._write(f"began {group}\n")

    def forget(self, group: int) -> None:
        """Remove a process group, whose number may be reused by others."""
        self.groups.discard(group)
        self._write(f"ended {group}\n")

    def end(self) -> None:
        """Have the shell end all groups now, and wait for that."""
        self._pipe.close()
        self._shell.wait()

    def _write(self, line: str) -> None:
        with suppress(BrokenPipeError, ValueError):  # somebody ended it, or closed the pipe
            os.write(self._pipe.fileno(), line.encode())


_reapers: list[Reaper] = []


def the_reaper() -> Reaper:
    """Return this process's reaper, which is started at the first call."""
    if not _reapers or not _reapers[-1].is_alive:
        mine = [old for old in _reapers if old.owner == os.getpid()]
        left = [group for old in mine for group in old.groups]
        mark = (
            mine[-1].mark if mine else "" if MARK in os.environ else f"{os.getpid()}-{secrets.token_hex(8)}"
        )
        _reapers[:] = [Reaper(mark)]
        for group in left:  # somebody ended the old one
            _reapers[-1].note(group)
    return _reapers[-1]


@atexit.register
def end_reaper() -> None:
    """End this process's reaper, when no more programs will be started."""
    while _reapers:
        reaper = _reapers.pop()
        if reaper.is_alive:
            reaper.end()
