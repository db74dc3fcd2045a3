"""A shard on a worker node: a command line in a separate process, and its file of results.

Whatever spreads shards carries `play_shard` and its argument to a node, and the answer back, as plain data.
The process of the shard does not outlive the one that asked for it (`pymllm.work.spread.leash`). What it has
played lies in a folder of the node that has the same name each time, so a second attempt there goes on.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pymllm.text_file import cut

MOST = 100_000
"""The greatest number of shards of tasks over many machines."""
LEDGER = "ledger.jsonl"
KEPT = "kept.jsonl"
PROGRAMS = "programs"
CORPUS = "corpus.jsonl"
ENDED = (0, 1, 3)
"""Exit statuses of a completed shard: no law broken, a law broken, or something unknown."""

PROGRAMS_LIMIT = 2**25
"""The greatest size of packed programs that a shard sends back, smallest first."""

_REFUSED = 2
_LOOK = 0.5  # seconds between two looks for a sign to stop
_PATIENCE = 10.0  # seconds that a shard has to end after it was asked to
_SAID_MAX = 2_000


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard for a node to play."""

    words: tuple[str, ...]  # of ``pymllm``: the command whose tasks are shared
    number: int  # number, count: which part of them, counted from 1
    count: int
    campaign: str  # a name of its own, under which the node keeps what was done
    file: str = LEDGER  # that has the results: a ledger by --output, another by --keep
    known: str | None = None  # text of the file of deviations
    directory: str = "."  # to work in, where the node has it
    stop: str = ""  # ends early once there is a file of this name, where the node sees it
    corpus: str | None = None  # text of a corpus

    @property
    def name(self) -> str:
        """The name of the shard's folder."""
        return f"{self.number}-of-{self.count}"


@dataclass(frozen=True, slots=True)
class PlayedShard:
    """The result of a played shard."""

    number: int
    status: int  # of the command, negative for a signal
    said: str  # the end of what it wrote to standard error
    host: str
    resumed: int = 0  # results that an earlier attempt had left there
    seconds: float = 0.0
    results: bytes = b""  # results, document, programs: packed by zlib
    document: bytes = b""
    programs: tuple[tuple[str, bytes], ...] = ()
    left: int = 0  # programs that were too large to travel


def play_shard(task: ShardTask) -> PlayedShard:
    """Play a shard to its end, continuing from an earlier attempt's results on this node.

    What lies there may be in use by an attempt that was given up too early, or be of another version. Where
    the command refuses it, the shard is played from its beginning in a folder of its own.
    """
    folder = _home(task.campaign) / task.name
    played = _play(task, folder)
    if played.status == _REFUSED and (folder / task.file).exists():
        with tempfile.TemporaryDirectory(prefix=f"pymllm-{task.name}-") as fresh:
            return _play(task, Path(fresh) / task.name)
    return played


def _home(campaign: str) -> Path:
    """Return a campaign's folder on this node, which only this user can write."""
    home = Path(tempfile.gettempdir()) / f"pymllm-{os.getuid()}-{campaign}"
    home.mkdir(mode=0o700, exist_ok=True)
    found = home.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return home
    return Path(tempfile.mkdtemp(prefix=f"pymllm-{campaign}-"))


def _play(task: ShardTask, folder: Path) -> PlayedShard:
    folder.mkdir(exist_ok=True)
    begun = time.monotonic()
    resumed = _count_results(folder / task.file)
    with open(folder / "document.json", "wb") as document, open(folder / "said.txt", "wb") as said:
        process = subprocess.Popen(
            _command(task, folder),
            stdin=subprocess.DEVNULL,
            stdout=document,
            stderr=said,
            cwd=task.directory if os.path.isdir(task.directory) else None,
            process_group=0,  # a Ctrl-C reaches the process that asks, which then ends this one
        )
        try:
            status = _wait(process, task.stop)
        finally:
            _end(process)
    answer = PlayedShard(
        task.number,
        status,
        _end_of(folder / "said.txt"),
        socket.gethostname(),
        resumed,
        time.monotonic() - begun,
    )
    if status not in ENDED:
        return answer
    answer = _collect(answer, folder, task.file)
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # others of this campaign are still played here
        folder.parent.rmdir()
    return answer


_LEASH = "pymllm.work.spread.leash"


def _command(task: ShardTask, folder: Path) -> list[str]:
    """Return the command line of a shard, whose process finds the same modules as this one."""
    start = f"import sys; sys.path[:] = {sys.path!r}; from {_LEASH} import run; run({os.getpid()})"
    words = [*task.words, "--shard", f"{task.number}/{task.count}"]
    words += ["--output", str(folder.absolute())] if task.file == LEDGER else []
    words += ["--keep", str((folder / task.file).absolute())] if task.file != LEDGER else []
    if task.known is not None:
        path = folder / "known.toml"
        path.write_text(task.known, encoding="utf-8")
        words += ["--deviations", str(path.absolute())]
    if task.corpus is not None:
        path = folder / "corpus" / CORPUS
        path.parent.mkdir(exist_ok=True)
        path.write_text(task.corpus, encoding="utf-8")
        words += ["--corpus", str(path.parent.absolute())]
    return [sys.executable, "-c", start, *words, "--json", "--progress", "off"]


def _wait(process: subprocess.Popen[bytes], stop: str) -> int:
    while True:
        try:
            return process.wait(_LOOK)
        except subprocess.TimeoutExpired:
            if stop and os.path.exists(stop):
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE)
                return _end(process)


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a process that has not ended by itself; return its status."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _count_results(path: Path) -> int:
    """Return the number of results in a file: its lines without the first."""
    try:
        with open(path, "rb") as file:
            return max(0, sum(line.endswith(b"\n") for line in file) - 1)
    except OSError:
        return 0


def _end_of(path: Path) -> str:
    text = path.read_bytes()[-_SAID_MAX:].decode("utf-8", "replace").strip()
    return text.removeprefix("pymllm: ")


def _collect(answer: PlayedShard, folder: Path, file: str) -> PlayedShard:
    """Return the files that a shard has written, packed."""
    found = sorted((folder / PROGRAMS).glob("*.jsonl"), key=lambda path: (path.stat().st_size, path.name))
    programs: list[tuple[str, bytes]] = []
    size = 0
    for path in found:
        packed = zlib.compress(path.read_bytes())
        size += len(packed)
        if size > PROGRAMS_LIMIT:
            break
        programs.append((path.name, packed))
    return PlayedShard(
        answer.number,
        answer.status,
        answer.said,
        answer.host,
        answer.resumed,
        answer.seconds,
        zlib.compress((folder / file).read_bytes()) if (folder / file).exists() else b"",
        zlib.compress((folder / "document.json").read_bytes()),
        tuple(programs),
        len(found) - len(programs),
    )


# -- what came back ------------------------------------------------------------------------------------------


def describe_end(played: PlayedShard) -> str:
    """Return words for the end of a shard's process that left no results."""
    how = (
        f"was killed by signal {-played.status}"
        if played.status < 0
        else f"ended with status {played.status}"
    )
    said = " ".join(played.said.split())
    return f"its process {how}{said and f': {cut(said, 400)}'}"


def unpack(packed: bytes, limit: int) -> bytes:
    """Return unpacked data of bounded size; raise `ValueError` if there is more."""
    reader = zlib.decompressobj()
    text = reader.decompress(packed, limit)
    if reader.unconsumed_tail:
        raise ValueError(f"longer than {limit:,} bytes")
    return text
