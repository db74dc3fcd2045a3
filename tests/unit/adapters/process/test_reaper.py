"""Programs end with the process that started them, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pymllm.adapters.process import reaper
from pymllm.adapters.process.reaper import Reaper, end_reaper, the_reaper
from tests.child_processes import is_running, left_of

STARTER = """
import sys, time
from pymllm.adapters.process.channel import Channel
channel = Channel([sys.executable, "-S", "-c", "import time; time.sleep(60)"], 100)
print(channel._process.pid, flush=True)
time.sleep(60)
"""


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], process_group=0)


def test_a_killed_starter_leaves_no_program_behind() -> None:
    """Not even SIGKILL, of which it hears nothing, and although the program does not read its input."""
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        program = int(starter.stdout.readline())
        assert is_running(program)
        os.kill(starter.pid, signal.SIGKILL)
    assert left_of([program], 10) == []


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    print(os.getpid(), flush=True)
    time.sleep(60)
"""
BETWEEN = """
import subprocess, sys
from pymllm.adapters.process.reaper import the_reaper
subprocess.run([sys.executable, "-S", "-c", sys.argv[1]], env=the_reaper().environment)
"""


def test_a_daemon_ends_with_the_process_at_the_top() -> None:
    """It left group and session of its program, and the process between them has ended before."""
    mine = Reaper("a mark of a test")
    with subprocess.Popen(
        [sys.executable, "-c", BETWEEN, DAEMON], stdout=subprocess.PIPE, text=True, env=mine.environment
    ) as between:
        assert between.stdout is not None
        daemon = int(between.stdout.readline())
    assert is_running(daemon)
    mine.end()
    assert left_of([daemon], 10) == []


def test_only_what_is_noted_is_ended() -> None:
    """A number that was forgotten may be somebody else's."""
    noted, forgotten = sleeper(), sleeper()
    mine = Reaper("")
    for process in (noted, forgotten):
        mine.note(process.pid)
    mine.forget(forgotten.pid)
    mine.end()
    assert noted.wait(10) == -signal.SIGKILL
    assert forgotten.poll() is None
    forgotten.kill()
    forgotten.wait()


def test_a_reaper_that_somebody_ended_is_replaced_and_forgets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is one in a process."""
    monkeypatch.setattr(reaper, "_reapers", [])
    first, program = the_reaper(), sleeper()
    assert the_reaper() is first
    first.note(program.pid)
    first._shell.kill()
    first._shell.wait()
    first.note(1)  # nobody is there to take note, which is no error
    first.forget(1)
    second = the_reaper()
    assert second is not first
    assert second.groups == {program.pid}
    end_reaper()
    assert program.wait(10) == -signal.SIGKILL
    assert not second.is_alive
    second.forget(program.pid)  # nor is this
    first._pipe.close()


def test_after_a_fork_it_is_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of this process must have its own, and leaves this one alone."""
    monkeypatch.setattr(reaper, "_reapers", [])
    first = the_reaper()
    first.note(1)
    with monkeypatch.context() as forked:
        forked.setattr(reaper.os, "getpid", lambda: 0)
        assert not first.is_alive
        theirs = the_reaper()
        assert theirs.groups == set()
        end_reaper()
    first.forget(1)
    first.end()
