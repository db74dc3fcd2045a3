"""The command ``pymllm watch``: a server's cache event stream, recorded and judged."""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from pymllm.cli import options
from pymllm.cli.output import complain
from pymllm.cli.store import keep_run, refuse_own_input, refuse_run_or_program, save_text
from pymllm.cli.tables import draw_document, progress_bar, tell
from pymllm.documents.watches import WatchDocument, WatchedLaw, WatchFinding
from pymllm.errors import CapacityError, UsageError
from pymllm.oracle.verdicts import Verdict, merge_verdicts

if TYPE_CHECKING:
    from pymllm.watching.judge import StreamJudge
    from pymllm.watching.programs import ProgramWriter

_HELP = """\
Judge the stream of a server's cache events: which blocks it stored and removed.

Routers and indexers live on this stream. SOURCE is the address of a publisher, or the file of a recording.
Layouts of vLLM, sglang, TensorRT-LLM and dynamo are read. docs/watch.md has the laws, W1 to W7.

\b
pymllm watch tcp://127.0.0.1:5557 --record events.jsonl    until Ctrl-C
pymllm watch tcp://127.0.0.1:5557 --for 300                five minutes
pymllm watch events.jsonl --blocks 2048
pymllm watch events.jsonl --program events-program.jsonl   and then: pymllm rerun events-program.jsonl

Listening needs pip install 'pymllm[servers]'; a file needs nothing.

Exit status: 0 if no law is broken, 1 if one is, 2 for bad input, 3 if a law that applies was not tested or
the stream ended early. After Ctrl-C or SIGTERM the verdict so far is printed, and is the status.
"""
_SCHEMES = ("tcp://", "ipc://")
_HOST_AND_PORT = re.compile(r"[^/\s]+:[0-9]+")
_QUIET_SECONDS = 5.0


@click.command("watch", short_help="Judge the stream of cache events of a server.", help=_HELP)
@click.argument("source", metavar="SOURCE")
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write each message to this new file as it comes.",
)
@click.option(
    "--for", "seconds", type=options.Amount(0.1, 1e8), metavar="SECONDS", help="Longest time to listen."
)
@click.option("--messages", type=options.whole(1, 10**12), help="Most messages to judge.")
@click.option(
    "--bind", is_flag=True, help="Wait at the address for a publisher that connects, instead of connecting."
)
@click.option(
    "--replay", metavar="ADDRESS", help="Where the publisher answers for messages that were missed."
)
@click.option("--blocks", type=options.whole(1, 10**9), help="Blocks of the server's memory; claims law W7.")
@click.option(
    "--removal",
    type=click.Choice(("all", "one")),
    default="all",
    help="Meaning of a removal: all copies of a block (W5), or one.",
)
@click.option(
    "--without",
    metavar="LAW",
    multiple=True,
    type=options.one_of([f"W{number}" for number in range(1, 8)]),
    help="A law that the server does not claim; may be repeated.",
)
@click.option(
    "--program",
    type=options.OUTPUT_FILE,
    help="Write the events of a recording as a program for indexes of blocks, for `pymllm rerun`.",
)
@click.option(
    "--plain",
    is_flag=True,
    help="Leave out events that only some indexes claim: groups, media, namespaces, numbers.",
)
@options.json
@options.store
@options.progress
def watch_command(
    source: str,
    record: Path | None,
    seconds: float | None,
    messages: int | None,
    bind: bool,
    replay: str | None,
    blocks: int | None,
    removal: str,
    without: tuple[str, ...],
    program: Path | None,
    plain: bool,
    as_json: bool,
    store: Path | None,
    progress: str,
) -> int:
    """Listen or read, judge, and tell."""
    from pymllm.watching.judge import StreamJudge
    from pymllm.watching.programs import ProgramWriter

    is_live = source.startswith(_SCHEMES)
    if plain and program is None:
        raise click.UsageError("--plain is about a program; name its file with --program.")
    if is_live:
        options.refuse_typed(("program",), f"{source} is an address, and a program is made of a recording")
    else:
        if "://" in source:
            raise click.UsageError(f"{source}: an address begins with {' or '.join(_SCHEMES)}.")
        if _HOST_AND_PORT.fullmatch(source) and not Path(source).exists():
            raise click.UsageError(f"{source}: there is no such file; as an address write tcp://{source}.")
        options.refuse_typed(("record", "seconds", "bind", "replay"), f"{source} is a file, not an address")
    refuse_own_input("--program", program, source)
    refuse_run_or_program("--program", program)
    judge = StreamJudge(blocks, frozenset({*without, *(["W5"] if removal == "one" else [])}))
    begun = time.monotonic()
    with progress_bar(progress, "watch", messages, "messages") as took:
        stream = _Stream(judge, messages, took, None if program is None else ProgramWriter(plain))
        if is_live:
            with options.refusing():
                _listen(stream, source, bind, replay, seconds, record)
        else:
            stream.read(Path(source))
    document = _document(stream, source, time.monotonic() - begun, record)
    if program is not None and stream.writer is not None:
        _save_program(stream.writer, stream.lines, source, program)
    keep_run(store, document)
    return tell(document, draw_document, as_json)


def _save_program(writer: ProgramWriter, lines: list[str], source: str, path: Path) -> None:
    text = "\n".join([writer.header(Path(source).name), *lines]) + "\n"
    if save_text(text, path, "--program"):
        left_out = f", {writer.left_out:,} events left out" if writer.left_out else ""
        complain(f"program written to {path}: {writer.steps:,} steps{left_out}")


@dataclass
class _Stream:
    """A stream with its judge; ``failure`` is the reason for an early end."""

    judge: StreamJudge
    most: int | None
    took: Callable[[int], None] | None
    writer: ProgramWriter | None = None
    lines: list[str] = field(default_factory=list)  # of the program
    failure: str | None = None
    missed: int = 0
    recovered: int = 0

    def take(self, plain: Any) -> bool:
        """Judge a message; return whether to continue."""
        from pymllm.watching.events import read_message

        try:
            message = read_message(plain)
            self.judge.feed(message)
            if self.writer is not None:
                self.lines += self.writer.lines(message)
        except (UsageError, CapacityError) as error:
            self.failure = f"message {self.judge.messages + 1}: {error}"
            return False
        if self.took is not None:
            self.took(self.judge.messages)
        return self.judge.messages != self.most

    def read(self, path: Path) -> None:
        """Judge a recorded stream."""
        from pymllm.watching.recordings import read_recording

        with options.refusing_unreadable():
            try:
                for number, plain in read_recording(path):
                    if plain is None:
                        complain(f"{path}: line {number} has no end, and is left out")
                    elif not self.take(plain):
                        return
            except UsageError as error:
                self.failure = str(error)


def _listen(
    stream: _Stream,
    address: str,
    bind: bool,
    replay: str | None,
    seconds: float | None,
    record: Path | None,
) -> None:
    """Judge messages as they arrive, until the time is over, enough have arrived, or an interrupt."""
    if importlib.util.find_spec("zmq") is None:
        raise UsageError("pyzmq is not installed; pip install 'pymllm[servers]' brings it")
    from pymllm.watching.listening import Listener, Silence
    from pymllm.watching.recordings import Recorder

    with ExitStack() as stack:
        recorder = None
        listener = Listener(address, bind=bind, replay=replay)
        stack.callback(listener.close)
        if record is not None:
            recorder = Recorder(record)
            stack.callback(recorder.close)
        is_warned = False
        until = None if seconds is None else time.monotonic() + seconds
        try:
            for it in listener.messages(until):
                if isinstance(it, Silence):
                    if it.seconds >= _QUIET_SECONDS and not stream.judge.messages and not is_warned:
                        is_warned = True
                        way = "connects to" if bind else "waits at"
                        other = "without --bind" if bind else "with --bind, as for vLLM's endpoints without *"
                        complain(
                            f"nothing has come for {_QUIET_SECONDS:.0f} s: is there a publisher that {way} "
                            f"{address}, and do requests run? Or try {other}"
                        )
                    continue
                if recorder is not None:
                    recorder.write(it)
                if not stream.take(it):
                    break
        except UsageError as error:
            stream.failure = str(error)
            if recorder is not None:
                recorder.write_end(stream.failure)
        except KeyboardInterrupt:
            complain("interrupted: the verdict covers the messages until now")
        stream.missed, stream.recovered = listener.asked, listener.recovered


def _document(stream: _Stream, source: str, seconds: float, record: Path | None) -> WatchDocument:
    from pymllm.watching.laws import LAWS

    judge = stream.judge
    laws = tuple(
        WatchedLaw(id, law.sentence, judge.verdict_of(id), judge.tests[id], judge.broken[id])
        for id, law in LAWS.items()
    )
    verdict = merge_verdicts(law.verdict for law in laws)
    if stream.failure is not None and verdict is not Verdict.VIOLATED:
        verdict = Verdict.UNKNOWN
    file = str(record) if record is not None else None if source.startswith(_SCHEMES) else source
    room = "" if judge.capacity is None else f" --blocks {judge.capacity}"
    return WatchDocument(
        source=source,
        seconds=round(seconds, 3),
        verdict=verdict,
        exit_status=verdict.exit_status,
        producers=judge.producers,
        messages=judge.messages,
        events=judge.events,
        restarts=judge.restarts,
        blocks=judge.copies,
        most_blocks=judge.most_copies,
        capacity=judge.capacity,
        late=judge.is_late,
        laws=laws,
        findings=tuple(
            WatchFinding(
                *(it.law, it.producer, it.number, it.event, it.place),
                *(it.what, it.expected, it.observed, it.told_in),
            )
            for _, it in sorted(judge.first.items())
        ),
        missed=stream.missed,
        recovered=stream.recovered,
        recording=None if record is None else str(record),
        failure=stream.failure,
        again=None if file is None else f"pymllm watch {quote(file)}{room}",
    )
