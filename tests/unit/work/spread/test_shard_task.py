"""A shard on its node: a process of its own, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pymllm.work.spread import shard_task
from pymllm.work.spread.shard_task import ShardTask, play_shard

TASK = ShardTask(("soak", "--seed", "1"), 2, 3, "c0ffee", directory="no such folder")
HOME = f"pymllm-{os.getuid()}-c0ffee"
SOURCE = Path(__file__).parents[4] / "src"

Scripted = Callable[[str], None]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The node's folder for what is temporary."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(shard_task, "_LOOK", 0.02)
    return tmp_path


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Lets a script of a few lines stand in for ``pymllm soak``; its argument is the shard's folder."""

    def use(script: str) -> None:
        words = ["-c", f"import os, sys, time\n{textwrap.dedent(script)}"]
        monkeypatch.setattr(
            shard_task, "_command", lambda task, folder: [sys.executable, "-S", *words, str(folder)]
        )

    return use


def test_what_a_shard_wrote_comes_back_and_nothing_stays(scripted: Scripted, here: Path) -> None:
    """Ledger, document and programs, the last words, and the status; the small programs first."""
    scripted(
        """
        os.chdir(sys.argv[1]); os.mkdir("programs")
        open("ledger.jsonl", "w").write("header\\nrun\\n")
        open("programs/long.jsonl", "w").write("x" * 90); open("programs/small.jsonl", "w").write("x")
        open("programs/other.txt", "w").write("no program")
        print("{}", end=""); print("pymllm: a word", file=sys.stderr); sys.exit(1)
        """
    )
    it = play_shard(TASK)
    assert (it.number, it.status, it.said, it.resumed, it.left) == (2, 1, "a word", 0, 0)
    assert (zlib.decompress(it.results), zlib.decompress(it.document)) == (b"header\nrun\n", b"{}")
    assert [(name, zlib.decompress(packed)) for name, packed in it.programs] == [
        ("small.jsonl", b"x"),
        ("long.jsonl", b"x" * 90),
    ]
    assert it.host
    assert it.seconds > 0
    assert [*here.iterdir()] == []


def test_programs_beyond_the_bound_are_counted(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs that a shard sends back are bounded in size, and the rest is counted."""
    monkeypatch.setattr(shard_task, "PROGRAMS_LIMIT", 25)
    scripted(
        """
        os.chdir(sys.argv[1]); os.mkdir("programs")
        for name in "abc":
            open(f"programs/{name}.jsonl", "w").write(name)
        """
    )
    it = play_shard(TASK)
    assert (it.results, [name for name, _ in it.programs], it.left) == (b"", ["a.jsonl", "b.jsonl"], 1)


@pytest.mark.parametrize(("end", "status"), [("os.kill(os.getpid(), 9)", -9), ("sys.exit(143)", 143)])
def test_a_second_attempt_finds_what_the_first_has_played(
    scripted: Scripted, here: Path, end: str, status: int
) -> None:
    """In a folder of the same name, which goes once the shard was played to its end."""
    scripted(f"open(sys.argv[1] + '/ledger.jsonl', 'w').write('header\\nrun\\nrun\\nha'); {end}")
    it = play_shard(TASK)
    assert (it.status, it.resumed, it.results) == (status, 0, b"")
    assert [path.name for path in (here / HOME).iterdir()] == ["2-of-3"]
    assert (here / HOME).stat().st_mode & 0o777 == 0o700
    scripted("print('{}')")
    again = play_shard(TASK)
    assert (again.status, again.resumed) == (0, 2)
    assert zlib.decompress(again.results) == b"header\nrun\nrun\nha"
    assert [*here.iterdir()] == []


def test_what_cannot_be_gone_on_with_is_left_alone(scripted: Scripted, here: Path) -> None:
    """An attempt that was given up too early may still write there; the shard is played elsewhere."""
    place = here / HOME / "2-of-3"
    place.mkdir(parents=True, mode=0o700)
    (here / HOME).chmod(0o700)
    (place / "ledger.jsonl").write_text("somebody's\n")
    scripted(
        """
        path = sys.argv[1] + "/ledger.jsonl"
        if os.path.exists(path):
            sys.exit(2)
        open(path, "w").write("mine\\n")
        """
    )
    it = play_shard(TASK)
    assert (it.status, zlib.decompress(it.results)) == (0, b"mine\n")
    assert (place / "ledger.jsonl").read_text() == "somebody's\n"
    assert [path.name for path in here.iterdir()] == [HOME]


def test_what_is_refused_for_itself_is_refused_once(scripted: Scripted, here: Path) -> None:
    """Without a ledger of an earlier attempt there is nothing to be in the way."""
    scripted(
        "open(sys.argv[1] + '/asked', 'a').write('.'); print('pymllm: no.', file=sys.stderr); sys.exit(2)"
    )
    it = play_shard(TASK)
    assert (it.status, it.said) == (2, "no.")
    assert (here / HOME / "2-of-3" / "asked").read_text() == "."


def test_a_folder_that_others_can_write_to_is_not_used(scripted: Scripted, here: Path) -> None:
    """A shared node's folder for temporary files is everybody's: what lies there may be anybody's."""
    (here / HOME).mkdir()
    (here / HOME).chmod(0o777)
    scripted("open(sys.argv[1] + '/ledger.jsonl', 'w').write(sys.argv[1])")
    it = play_shard(TASK)
    used = Path(zlib.decompress(it.results).decode())
    assert used.parent.parent == here
    assert used.parent.name.startswith("pymllm-c0ffee-")
    assert [*(here / HOME).iterdir()] == []


def test_a_sign_to_stop_ends_a_shard(scripted: Scripted, here: Path) -> None:
    """A sign to stop asks a shard to end in order, and its results so far stay."""
    (here / "stop").touch()
    scripted(
        """
        import signal
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        open(sys.argv[1] + "/ledger.jsonl", "w").write("header\\n")
        time.sleep(60)
        """
    )
    it = play_shard(replace(TASK, stop=str(here / "stop")))
    assert it.status in (143, -signal.SIGTERM)
    assert (here / HOME / "2-of-3").exists()


def test_one_that_does_not_stop_is_killed(
    scripted: Scripted, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while."""
    monkeypatch.setattr(shard_task, "_PATIENCE", 0.05)
    scripted(
        """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(os.path.dirname(sys.argv[1]) + "/../stop", "w").close()
        time.sleep(60)
        """
    )
    assert play_shard(replace(TASK, stop=str(here / "stop"))).status == -signal.SIGKILL


def test_an_interrupt_leaves_no_process(
    scripted: Scripted, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled task ends its shard before the interrupt goes on."""

    def look(path: str) -> bool:
        if path != "stop":
            return path == str(here)
        raise KeyboardInterrupt

    monkeypatch.setattr(shard_task.os.path, "exists", look)
    others = psutil.Process().children()
    scripted("open(sys.argv[1] + '/pid', 'w').write(str(os.getpid())); time.sleep(60)")
    with pytest.raises(KeyboardInterrupt):
        play_shard(replace(TASK, stop="stop"))
    monkeypatch.undo()
    left = [it for it in psutil.Process().children() if it.is_running() and "-S" in it.cmdline()]
    assert [it for it in left if it not in others] == []


def test_the_command_is_a_shard_of_pymllm(tmp_path: Path) -> None:
    """A shard's command has known deviations and a corpus as files, and finds the same modules."""
    words = shard_task._command(replace(TASK, known="[[deviation]]", corpus="{}"), tmp_path)
    assert words[:2] == [sys.executable, "-c"]
    assert repr(sys.path) in words[2]
    assert words[3:] == [
        *("soak", "--seed", "1", "--shard", "2/3", "--output", str(tmp_path)),
        *("--deviations", str(tmp_path / "known.toml"), "--corpus", str(tmp_path / "corpus")),
        *("--json", "--progress", "off"),
    ]
    assert (tmp_path / "known.toml").read_text() == "[[deviation]]"
    assert (tmp_path / "corpus" / "corpus.jsonl").read_text() == "{}"
    words = shard_task._command(replace(TASK, words=("faults", "B01"), file="kept.jsonl"), tmp_path)
    assert words[3:] == [
        *("faults", "B01", "--shard", "2/3", "--keep", str(tmp_path / "kept.jsonl")),
        *("--json", "--progress", "off"),
    ]


def test_the_command_runs_where_it_is_asked_to(scripted: Scripted, tmp_path: Path) -> None:
    """Adapters and programs are found in the working folder, where the node has it."""
    place = tmp_path / "work"
    place.mkdir()
    scripted("open(sys.argv[1] + '/ledger.jsonl', 'w').write(os.getcwd())")
    assert zlib.decompress(play_shard(replace(TASK, directory=str(place))).results).decode() == str(place)
    assert zlib.decompress(play_shard(TASK).results).decode() == os.getcwd()


def test_a_shard_runs_the_program() -> None:
    """To its end, with its status and words."""
    done = subprocess.run(
        [sys.executable, "-c", f"from pymllm.work.spread.leash import run; run({os.getpid()})", "--version"],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("pymllm ")


def test_a_shard_does_not_outlive_who_asked_for_it(tmp_path: Path) -> None:
    """A worker that is killed ends nothing by itself."""
    shard = "from pymllm.work.spread.leash import run; import os; run(os.getppid())"
    words = ["soak", "--adapter", "rows", "--minutes", "5", "--jobs", "1", "--output", str(tmp_path / "c")]
    worker = (
        "import subprocess, sys, time\n"
        f"it = subprocess.Popen([sys.executable, '-c', {shard!r}, *{words!r}], stdout=2)\n"
        "print(it.pid, flush=True)\ntime.sleep(60)\n"
    )
    asking = subprocess.Popen(
        [sys.executable, "-c", worker],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert asking.stdout is not None
    with asking, asking.stdout:
        process = psutil.Process(int(asking.stdout.readline()))
        try:
            end = time.monotonic() + 60
            while not (tmp_path / "c" / "ledger.jsonl").exists() and time.monotonic() < end:
                time.sleep(0.05)
            assert process.is_running()
            asking.kill()
            asking.wait()
            gone, _ = psutil.wait_procs([process], timeout=20)
            assert gone == [process]
        finally:
            asking.kill()
            if process.is_running():
                process.kill()
