"""A server that a probe starts itself, and restarts between two tries."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable

import httpx

from pymllm.probing.clients import Client, NotServed, connect

_ENDING_SECONDS = 10.0
_BETWEEN_LOOKS = 0.1


class StartedServer:
    """The process of a command in a process group of its own, which is ended as a whole.

    ``seconds`` is the longest time until it answers.
    """

    def __init__(self, command: str, seconds: float = 600.0) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise NotServed(f"--start {command!r}: {error}") from error
        if not self._words:
            raise NotServed("--start is empty; name the command that starts the server")
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, http: httpx.Client, api: str, waiting: Callable[[int], None] | None = None) -> Client:
        """End any running process, start a new one, and return a client once the server answers."""
        self.end()
        if _listens(http):
            raise NotServed(f"{http.base_url} answers already; end that server, --start starts its own")
        try:
            self._process = subprocess.Popen(
                self._words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise NotServed(f"--start cannot run {self._words[0]!r}: {error.strerror}") from error
        until = time.monotonic() + self._seconds
        while True:
            try:
                return connect(http, api)
            except NotServed as error:
                status = self._process.poll()
                if status is not None:
                    raise NotServed(f"--start: the command ended with status {status}, unanswered") from error
                if time.monotonic() > until:
                    self.end()
                    raise NotServed(
                        f"--start: no answer within {self._seconds:g} s, the longest that it waits; start "
                        f"the server before, and leave --start out: {error}"
                    ) from error
            if waiting is not None:
                waiting(0)
            time.sleep(_BETWEEN_LOOKS)

    def end(self) -> None:
        """End the process and all processes that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            try:
                process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            return


def _listens(http: httpx.Client) -> bool:
    try:
        http.get("/")
    except httpx.ConnectError:
        return False
    except httpx.HTTPError:
        return True
    return True
