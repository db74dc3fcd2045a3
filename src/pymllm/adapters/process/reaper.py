"""Whoever ends the programs of this process if it dies before it can: a shell that waits for its end.

A program has a process group of its own, so that it can be ended with all that it has started. What ends this
process from outside does not reach that group. The shell reads which groups there are from a pipe; the
pipe's end means that this process is gone.
"""

from __future__ import annotations

import atexit
import os
import subprocess
from contextlib import suppress

__all__ = ["Reaper", "end_reaper", "the_reaper"]

_SCRIPT = """
groups=
while read -r verb group; do
  others=
  for other in $groups; do [ "$other" = "$group" ] || others="$others $other"; done
  groups=$others
  [ "$verb" = began ] && groups="$groups $group"
done
for group in $groups; do kill -KILL -- "-$group"; done
exit 0
"""


class Reaper:
    """A shell beside this process; it ends with it, and then ends every group that is still noted.

    Attributes
    ----------
    owner : int
        The process that started it: after a fork the child is somebody else.
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def is_alive(self) -> bool:
        """Whether it is this process's, and running."""
        return self.owner == os.getpid() and self._shell.poll() is None

    def note(self, group: int) -> None:
        """Take a process group into its care."""
        self._write(f"began {group}\n")

    def forget(self, group: int) -> None:
        """Let go of one: its number may be somebody else's from now on."""
        self._write(f"ended {group}\n")

    def end(self) -> None:
        """Let it do its work now, and wait until it is done."""
        if self._shell.stdin is not None:
            self._shell.stdin.close()
        self._shell.wait()

    def _write(self, line: str) -> None:
        if self._shell.stdin is not None:
            with suppress(BrokenPipeError):  # somebody ended it; the programs still end with their input
                os.write(self._shell.stdin.fileno(), line.encode())


_reapers: list[Reaper] = []


def the_reaper() -> Reaper:
    """Return this process's reaper, started when it is first needed."""
    if not _reapers or not _reapers[-1].is_alive:
        _reapers[:] = [Reaper()]
    return _reapers[-1]


@atexit.register
def end_reaper() -> None:
    """Let this process's reaper do its work, once nobody starts programs any more."""
    while _reapers:
        reaper = _reapers.pop()
        if reaper.is_alive:
            reaper.end()
