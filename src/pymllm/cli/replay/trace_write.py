"""The commands ``pymllm trace convert``, ``sample`` and ``synthesize``, which write traces."""

from __future__ import annotations

import gzip
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from pymllm.cli import options
from pymllm.cli.output import complain, escaped, say
from pymllm.cli.replay.reading import trace_options
from pymllm.cli.replay.trace import compared, open_or_refuse, requests_option, trace_command, watched
from pymllm.cli.tables import draw, make_table, progress_bar, tell
from pymllm.documents.traces import ApartRow, TraceSynthesizeDocument, differences_of, facts_of
from pymllm.replay.plan import WRITTEN_FORMATS
from pymllm.report.quantities import count_of
from pymllm.text_file import new_file

if TYPE_CHECKING:
    from pymllm.workloads.request import Request

_STDOUT = Path("-")


class _TraceFile(options.OutputFile):
    """An option type for a file to write, or ``-`` for standard output; ``./-`` is a file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        return path.absolute() if path == _STDOUT and value != "-" else path


_output = click.option(
    "-o",
    "--output",
    type=_TraceFile(),
    metavar="FILE",
    required=True,
    help="File to write, compressed if its name ends in .gz; it is replaced once all is written. "
    "-: standard output.",
)
_to = click.option(
    "--to",
    "written_as",
    type=click.Choice(WRITTEN_FORMATS),
    default="pymllm",
    help="How to write it; only pymllm keeps every field.",
)
_SIZES = {"mooncake": 512, "bailian": 16, "dynamo": 512}
_WORDS = {
    "session": "sessions",
    "wait_for": "what a request waits for",
    "delay_ms": "delays",
    "kind": "kinds",
    "cached_tokens": "tokens that the server found cached",
    "arrival_ms": "a time before which a waiting request does not arrive",
}


@trace_command.command("convert", short_help="Write a trace in another format.")
@click.argument("trace", metavar="TRACE")
@_to
@_output
@requests_option
@trace_options
@options.progress
def convert_command(
    trace: str, *, written_as: str, output: Path, requests: int | None, progress: str, **chosen: Any
) -> None:
    """Write a trace in another format; fields that the format lacks are left out, with a message.

    Blocks of different namespaces get different ids where the format has no namespaces. Exit status: 0, 2 for
    bad input, and then nothing is written.
    """
    opened = open_or_refuse(trace, requests, chosen)
    count = write_trace(watched(opened, progress, "converting"), written_as, output)
    _say_written(output, count, written_as)


@trace_command.command("sample", short_help="Write a sample of a trace, without names.")
@click.argument("trace", metavar="TRACE")
@click.option(
    "--fraction", type=options.Amount(0, 1), metavar="F", help="Keep about so large a part of the sessions."
)
@click.option(
    "--requests",
    "most",
    type=options.whole(1, 2**31 - 1),
    help="Keep sessions with at most N requests in all; reads a file twice.",
)
@click.option("--seed", type=options.SEED, default=0, help="Which sessions are drawn.")
@_to
@_output
@trace_options
@options.progress
def sample_command(
    trace: str,
    *,
    fraction: float | None,
    most: int | None,
    seed: int,
    written_as: str,
    output: Path,
    progress: str,
    **chosen: Any,
) -> None:
    """Write whole sessions of a trace, drawn at random, with ids and names renumbered from 0.

    In a trace without sessions a request joins the session of the first request with its longest shared
    prefix, if that is more than half of it. Times begin with the sample; kinds stay as they are.

    Exit status: 0, 2 for bad input, and then nothing is written.
    """
    if (fraction is None) == (most is None):
        raise click.UsageError("say how much to keep, with one of --fraction and --requests.")
    from pymllm.traces.conversion import Groups, chosen_by_count, chosen_by_share, sampled
    from pymllm.traces.lines import TraceLines

    lines = TraceLines(trace)
    if most is not None and lines.is_read_once:
        raise click.UsageError(
            f"{lines.source} can be read once only, and --requests reads it twice; give --fraction."
        )
    opened = open_or_refuse(trace, None, dict(chosen))
    if fraction is not None:
        choose = chosen_by_share(fraction, seed)
    else:
        assert most is not None
        groups = Groups()
        sizes = Counter(groups.of(request) for request in watched(opened, progress, "counting"))
        with options.refusing():
            choose = chosen_by_count(sizes, most, seed)
        opened = open_or_refuse(trace, None, dict(chosen))
    count = write_trace(sampled(watched(opened, progress, "sampling"), choose), written_as, output)
    _say_written(output, count, written_as)


@trace_command.command("synthesize", short_help="Write a trace that is like another.")
@click.argument("trace", metavar="TRACE")
@click.option(
    "--requests",
    "count",
    type=options.whole(1, 10**8),
    show_default="as many as TRACE",
    help="Requests to make.",
)
@click.option("--seed", type=options.SEED, default=0, help="Equal seeds make equal traces.")
@_to
@_output
@trace_options
@options.json
@options.progress
def synthesize_command(
    trace: str,
    *,
    count: int | None,
    seed: int,
    written_as: str,
    output: Path,
    as_json: bool,
    progress: str,
    **chosen: Any,
) -> int:
    """Fit a generator to a trace, write its requests, and compare the statistics of both.

    Lengths, times between arrivals, sharing by depth and reuse distances are kept, by drawing runs of
    requests; waits and namespaces are not.

    Exit status: 0, 2 for bad input, and then nothing is written.
    """
    if output == _STDOUT:
        raise click.UsageError("-o -: the statistics of both traces go to standard output; name a file.")
    opened = open_or_refuse(trace, None, chosen)
    from pymllm.traces.statistics import TraceStatistics
    from pymllm.traces.synthesis import Fit, synthesized

    fit, found = Fit(), TraceStatistics()
    for request in watched(opened, progress, "fitting"):
        fit.learn(request)
    fit.statistics.finish()
    if len(fit) < fit.statistics.requests:
        complain(
            f"fitted to the first {len(fit):,} of {fit.statistics.requests:,} requests, the most that are"
        )
    wanted = fit.statistics.requests if count is None else count
    with options.refusing(), progress_bar(progress, f"making {output}", wanted) as show:

        def shown(requests: Iterable[Request]) -> Iterable[Request]:
            for done, request in enumerate(requests, 1):
                yield request
                if show is not None:
                    show(done)

        write_trace(shown(synthesized(fit, wanted, seed, found)), written_as, output)
    found.finish()
    document = TraceSynthesizeDocument(
        name=trace,
        format=opened.format,
        seed=seed,
        output=str(output),
        fitted_requests=len(fit),
        trace=facts_of(fit.statistics),
        synthetic=facts_of(found),
        apart=differences_of(fit.statistics, found),
    )
    return tell(document, make_text, as_json)


def make_text(document: TraceSynthesizeDocument) -> str:
    """Return the statistics of both traces as text."""
    made = count_of(document.synthetic.requests, "request")
    head = f"{escaped(document.output)}: {made} like those of {escaped(document.name)}, seed {document.seed}"
    tables = compared([("trace", document.trace), ("synthetic", document.synthetic)])
    rows = [(it.what, f"{100 * it.apart:.1f} points", _bound(it)) for it in document.apart]
    titles = ("how far apart", "largest difference of shares", "of those at most")
    apart = draw(make_table(*titles, right=titles[1:], gap=2, rows=rows), fits_terminal=True)
    return "\n".join([head, "", *tables, apart.rstrip()])


def _bound(it: ApartRow) -> str:
    if it.what == "requests of a session":
        return count_of(int(it.at_most), "request")
    return f"{it.at_most:,.3f} s" if "interval" in it.what else count_of(int(it.at_most), "token")


def _say_written(output: Path, count: int, written_as: str) -> None:
    """Report the written trace, on standard error if the trace went to standard output or a pipe."""
    is_file = output != _STDOUT and output.is_file()
    name = "standard output" if output == _STDOUT else output
    (say if is_file else complain)(f"{name}: {count_of(count, 'request')}, {written_as}")


def write_trace(requests: Iterable[Request], written_as: str, output: Path) -> int:
    """Write a trace, return its number of requests, and report fields that its format cannot keep."""
    from pymllm.traces.conversion import Fitted
    from pymllm.traces.registry import written_lines

    fitted, count, size = Fitted(written_as), 0, 0

    def counted() -> Iterable[Request]:
        nonlocal count, size
        for request in fitted(requests):
            count, size = count + 1, request.block_tokens
            yield request

    with _opened(output) as file:
        stream: IO[bytes] = file
        if output.suffix == ".gz":
            stream = cast("IO[bytes]", gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0))
        stream.writelines(written_lines(counted(), written_as))
        if stream is not file:
            stream.close()
        if not count:
            raise click.UsageError("no request is left, so nothing was written; keep a larger part.")
    for name, lost in fitted.lost.items():
        if lost:
            complain(f"{written_as} has no field for {_WORDS[name]}: left out of {count_of(lost, 'request')}")
    if fitted.added:
        they = count_of(fitted.added, "request")
        complain(f"{written_as} tells sessions by what requests wait for: the one before, added to {they}")
    if size != _SIZES.get(written_as, size):
        it = "it" if output == _STDOUT else output
        complain(f"{written_as} does not say how large blocks are; read {it} with --block-tokens {size}")
    return count


@contextmanager
def _opened(output: Path) -> Iterator[IO[bytes]]:
    """Yield the stream for a trace; standard output may be closed early, as by any command."""
    if output == _STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with options.refusing_unreadable(), new_file(output) as file:
        yield file
