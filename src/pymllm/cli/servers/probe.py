"""The command ``pymllm probe``: a running server, judged by answers from a warm and a cold cache."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

import click

from pymllm.cli import options
from pymllm.cli.output import complain, say
from pymllm.cli.servers.serve import why_no_servers
from pymllm.cli.store import keep_run, save_text
from pymllm.cli.tables import draw_document, progress_bar, tell
from pymllm.documents.probes import (
    ProbeDifference,
    ProbedLaw,
    ProbeDocument,
    ProbeTolerance,
    ProbeViolation,
)
from pymllm.oracle.verdicts import Verdict, merge_verdicts

if TYPE_CHECKING:
    from pymllm.probing.heard import Heard
    from pymllm.probing.judge import Judgement
    from pymllm.probing.probed import Probed
    from pymllm.probing.records import History
    from pymllm.probing.search import ProbePlan, Servers
    from pymllm.serving.publisher import EventPublisher

_HELP = """\
Judge a running server: a request is answered with a warm cache as with a cold one.

Random requests share prefixes, go on with answers, run at once and are dropped; each is asked again cold, and
log-probabilities are compared. The server needs no change, and no model of it is needed: docs/probe.md.
Traffic goes to URL alone. Its cache is emptied, so probe a server that is yours.

\b
pymllm probe http://127.0.0.1:8000
pymllm probe --demo hybrid              a server of our own, in this process
pymllm probe URL --events tcp://127.0.0.1:5557     and the events of its cache
pymllm probe URL --again FILE           make the requests of a file once more
pymllm probe --judge FILE               judge a file by its answers alone

It needs pip install 'pymllm[servers]', and --demo torch, too.

Exit status: 0 if no law is broken, 1 if one is, 2 for bad input, 3 if a law was not tested or the server
failed. After Ctrl-C or SIGTERM the findings so far are printed and kept, and the status is 130 or 143.
"""
_DEMO_REQUESTS, _DEMO_TOKENS = 40, 4


@click.command("probe", short_help="Judge a running server by warm and cold answers.", help=_HELP)
@click.argument("url", metavar="[URL]", required=False)
@click.option(
    "--demo",
    type=click.Choice(["dense", "window", "hybrid"]),
    is_flag=False,
    flag_value="dense",
    metavar="[ARCHITECTURE]",
    help="Start the server of `pymllm serve` here, and probe it.",
)
@click.option(
    "--api",
    type=click.Choice(["auto", "openai", "openai,namespaces", "llama.cpp", "sglang", "sglang,namespaces"]),
    default="auto",
    help="API of the server; auto: detect it. namespaces: it claims to separate them.",
)
@click.option("--against", metavar="URL", help="Ask cold requests of this server, which caches nothing.")
@click.option(
    "--start",
    metavar="'COMMAND'",
    help="Start the server by this command, again for smaller programs; it must answer in 600 s.",
)
@click.option(
    "--requests",
    type=options.whole(1, 1_000_000),
    show_default=f"60; with --demo {_DEMO_REQUESTS}, with --minutes as many as fit",
    help="Largest number of requests, besides those that measure the spread; each is sent again cold.",
)
@click.option("--minutes", type=options.Amount(0.01, 100_000), help="Longest time, without the shrinking.")
@click.option(
    "--shrink-seconds",
    type=options.Amount(0, 1_000_000),
    default=120.0,
    help="Longest time to look for the smallest program; 0: none is looked for.",
)
@click.option("--seed", type=options.SEED, default=0, help="Of the requests.")
@click.option("--longest", type=options.whole(32, 100_000), default=160, help="Most tokens of a prompt.")
@click.option(
    "--max-tokens",
    type=options.whole(1, 1000),
    show_default=f"8; with --demo {_DEMO_TOKENS}",
    help="Tokens to produce.",
)
@click.option(
    "--tolerance",
    type=options.Amount(0, 1000),
    show_default="20 times the measured spread, at least 1e-4",
    help="Difference of a log-probability that counts.",
)
@click.option(
    "--without",
    metavar="LAW",
    multiple=True,
    type=options.one_of(
        [*(f"V{number}" for number in range(1, 8)), *(f"W{number}" for number in range(1, 9)), "exact-reuse"]
    ),
    help="A law that the server does not claim, or exact-reuse: V1, V5 and half of V3; may be repeated.",
)
@click.option(
    "--events",
    metavar="ADDRESS",
    help="Where the server publishes the events of its cache: judge these, and hits by them (W1 to W8).",
)
@options.timeout
@click.option(
    "--again", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Play this file."
)
@click.option(
    "--judge",
    "judged",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Judge this file.",
)
@click.option(
    "--output",
    type=options.OUTPUT_FOLDER,
    metavar="FOLDER",
    default="runs",
    callback=options.demand_writable,
    help="Folder for requests and answers if a law is broken; if given, in any case.",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["text", "curl"]),
    default="text",
    help="Form of the result; curl: the program as a script of a shell.",
)
@options.json
@options.store
@options.progress
def probe_command(
    url: str | None,
    demo: str | None,
    api: str,
    against: str | None,
    start: str | None,
    events: str | None,
    timeout: float,
    shrink_seconds: float,
    again: Path | None,
    judged: Path | None,
    output: Path,
    form: str,
    as_json: bool,
    store: Path | None,
    progress: str,
    **asked: Any,
) -> int:
    """Probe one server."""
    form = "json" if as_json else form
    if judged is not None:
        options.refuse_typed(("store", "events"), "--judge measures nothing")
        if url is not None:
            raise click.UsageError(
                "--judge asks no server; leave the URL out, or use --again to play the file."
            )
        return judge_file(judged, form, asked["without"])
    if (url is None) == (demo is None):
        raise click.UsageError("name the URL of one server, or --demo for one of our own.")
    if demo is not None:
        options.refuse_typed(("start", "against", "api"), "--demo has its own server")
    if against is not None and against.rstrip("/") == str(url).rstrip("/"):
        raise click.UsageError(f"--against {against}: this is the server that is probed; name another one.")
    _refuse_without_packages(demo, events)
    from pymllm.probing.records import read_history
    from pymllm.probing.search import play_again, probe, shrink

    if again is not None:
        options.refuse_typed(
            ("requests", "minutes", "seed", "longest", "max_tokens"), "--again has its own requests"
        )
        with options.refusing_unreadable():
            earlier = read_history(again)
    begun = time.monotonic()
    plan = _plan(asked, demo)
    with ExitStack() as stack, options.refusing():
        servers, address = stack.enter_context(
            _servers(url, demo, api, against, start, events, timeout, progress, plan)
        )
        with progress_bar(progress, "probe", None, "answers") as bar:
            done = play_again(servers, earlier, plan, bar) if again else probe(servers, plan, bar)
        if done.judgement.violation is not None and shrink_seconds and done.interruption is None:
            with progress_bar(progress, "shrink", None, "tries") as bar:
                shrink(servers, done, shrink_seconds, bar)
        seconds = time.monotonic() - begun
        file = _save(done, output)
        script = _script(done.smallest or done.history, address) if form == "curl" else ""
    typed = {"api": None if api == "auto" else api, "against": against, "start": start, "events": events}
    words = "".join(f" --{name} {quote(word)}" for name, word in typed.items() if word is not None)
    document = _document(done, address, seconds, file, demo, words)
    keep_run(store, document)
    if form == "curl" and done.interruption is None:
        say(script)
        from pymllm.report.sections.probes import verdict_line

        complain(verdict_line(document))
        return document.exit_status
    return tell(document, draw_document, form == "json", done.interruption)


def judge_file(file: Path, form: str, without: Sequence[str] = ()) -> int:
    """Judge the answers in a file without a server, print the result, and return the exit status."""
    from pymllm.probing.judge import judge
    from pymllm.probing.probed import Probed
    from pymllm.probing.records import read_history

    with options.refusing_unreadable():
        history = read_history(file)
    begun = time.monotonic()
    done = Probed(history, judge(history, without=without))
    if form == "curl":
        _refuse_without_packages(None)
        say(_script(history, "http://127.0.0.1:8000"))
        return 0
    document = _document(done, None, time.monotonic() - begun, str(file), None)
    return tell(document, draw_document, form == "json")


def _refuse_without_packages(demo: str | None, events: str | None = None) -> None:
    reason = why_no_servers() if demo is not None else None
    needed = {"httpx": "httpx", **({} if events is None else {"zmq": "pyzmq"})}
    for module, package in needed.items():
        if importlib.util.find_spec(module) is None:
            reason = f"{package} is not installed; pip install 'pymllm[servers]' brings it"
    if reason is not None:
        raise click.UsageError(f"pymllm probe: {reason}.")


def _plan(asked: dict[str, Any], demo: str | None) -> ProbePlan:
    from pymllm.probing.search import ProbePlan

    requests, tokens = asked["requests"], asked["max_tokens"]
    if requests is None and asked["minutes"] is None:
        requests = 60 if demo is None else _DEMO_REQUESTS
    if tokens is None:
        tokens = 8 if demo is None else _DEMO_TOKENS
    return ProbePlan(**{**asked, "requests": requests, "max_tokens": tokens})


@contextmanager
def _servers(
    url: str | None,
    demo: str | None,
    api: str,
    against: str | None,
    start: str | None,
    events: str | None,
    timeout: float,
    progress: str,
    plan: ProbePlan,
) -> Iterator[tuple[Servers, str]]:
    """Connect to the servers; start the first if requested, and end it afterwards."""
    from pymllm.probing.abilities import find_abilities, speak_alike
    from pymllm.probing.clients import Client, connect, make_http
    from pymllm.probing.search import Servers
    from pymllm.probing.started import StartedServer

    api, _, claim = api.partition(",")
    with ExitStack() as stack:
        publisher = None
        if demo is not None and events is not None:
            publisher = stack.enter_context(_publisher(events))
            events = publisher.address
        address = url or stack.enter_context(_demo(demo or "dense", publisher))
        heard = None if events is None else stack.enter_context(_heard(events))
        http = stack.enter_context(make_http(address, timeout))
        other = None
        if against is not None:
            other = connect(stack.enter_context(make_http(against, timeout)), api)
            find_abilities(other, plan.longest)
            client = connect(http, api)
        if start is None:
            client, renew = connect(http, api), None
        else:
            started = StartedServer(start)
            stack.callback(started.end)
            with progress_bar(progress, "start", None, "answers") as bar:
                client = started.start(http, api, bar)

            def renew() -> Client:
                started.start(http, api)
                return client  # which knows what was found out

        find_abilities(client, plan.longest, claims_namespaces=bool(claim))
        if other is not None:
            speak_alike(client, other)
        yield Servers(client, other, renew, is_fresh=start is not None, heard=heard), address


@contextmanager
def _heard(events: str) -> Iterator[Heard]:
    from pymllm.probing.heard import Heard

    with closing(Heard(events)) as heard:
        yield heard


@contextmanager
def _publisher(events: str) -> Iterator[EventPublisher]:
    from pymllm.serving.publisher import EventPublisher
    from pymllm.serving.service import ServerConfig

    with closing(EventPublisher(events, window=ServerConfig().window)) as publisher:
        yield publisher


@contextmanager
def _demo(architecture: str, publisher: EventPublisher | None) -> Iterator[str]:
    from pymllm.torch_extra import collector_aside

    with collector_aside():
        import torch

        from pymllm.serving.background import serving
        from pymllm.serving.service import ServerConfig, Service
    torch.set_num_threads(1)  # matrices of 64 by 64: more threads wait for each other
    with serving(Service(ServerConfig(architecture), publisher)) as address:
        yield address


def _save(done: Probed, folder: Path) -> str | None:
    """Write the history of a probe; return the file that shows the violation, or else the whole one."""
    from pymllm.probing.records import dump_history

    violation = done.judgement.violation
    context = click.get_current_context()
    is_typed = context.get_parameter_source("output") is click.core.ParameterSource.COMMANDLINE
    if violation is None:
        return save_text(dump_history(done.history), folder / "probe.jsonl") if is_typed else None
    whole = save_text(dump_history(done.history), folder / f"probe-{violation.law}-whole.jsonl")
    if done.smallest is None:
        return whole
    return save_text(dump_history(done.smallest), folder / f"probe-{violation.law}.jsonl")


def _script(history: History, url: str) -> str:
    import httpx

    from pymllm.probing.clients import CLIENTS
    from pymllm.probing.telling import curl_script

    head = history.head
    with httpx.Client() as nowhere:
        client = CLIENTS[head.api](nowhere, head.server, head.model)
        client.has_salts, client.has_ids = head.has_salts, head.has_ids
        if head.api == "openai":
            client.reset_path = "/reset_prefix_cache"
        return curl_script(history, client, url)


# -- the document ------------------------------------------------------------------------------------------


def _document(
    done: Probed,
    url: str | None,
    seconds: float,
    file: str | None,
    demo: str | None,
    options_of_url: str = "",
) -> ProbeDocument:
    from pymllm.probing.judge import UNTESTED, judge, laws_of
    from pymllm.probing.telling import lines_of

    judgement, head = done.judgement, done.history.head
    reasons = dict(judgement.reasons)
    if done.failure is not None or judgement.violation is not None:
        ended = {law: "the probe ended before" for law, why in reasons.items() if why == UNTESTED}
        reasons |= ended
    laws = tuple(
        ProbedLaw(id, law.sentence, judgement.verdict_of(id), judgement.tests.get(id, 0), reasons.get(id))
        for id, law in laws_of(head).items()
    )
    verdict = merge_verdicts(law.verdict for law in laws)
    if done.failure is not None and verdict is not Verdict.VIOLATED:
        verdict = Verdict.UNKNOWN
    shown = done.history if done.smallest is None else done.smallest
    told = judgement if done.smallest is None else judge(done.smallest)
    violation = told.violation
    it = judgement.tolerance
    where = (f"--demo {demo}" if demo else url or "URL") + options_of_url
    again = None if violation is None or file is None else f"pymllm probe {where} --again {quote(file)}"
    return ProbeDocument(
        server=head.server,
        api=head.api,
        model=head.model,
        url=None if demo else url,
        demo=demo,
        cold=head.cold,
        seed=head.seed,
        requests=done.requests,
        seconds=round(seconds, 3),
        verdict=verdict,
        exit_status=verdict.exit_status,
        tolerance=ProbeTolerance(
            it.judged, it.judged_company, it.alone, it.company, it.warm, max(it.judged, it.judged_warm)
        ),
        places=judgement.compared,
        left_out=judgement.left_out,
        largest=max(judgement.largest, told.largest),
        laws=laws,
        violation=None
        if violation is None
        else ProbeViolation(
            violation.law,
            violation.message,
            violation.expected,
            violation.observed,
            violation.step,
            violation.request,
        ),
        program=tuple(lines_of(shown)) if done.smallest is not None else (),
        tries=done.tries,
        unshrunk=done.unshrunk,
        failure=done.failure,
        notes=tuple(_notes(done)),
        differences=tuple(_differences(judgement)),
        output=file,
        again=again,
    )


_MOST_DIFFERENCES = 10_000


def _differences(judgement: Judgement) -> Iterator[ProbeDifference]:
    for it in judgement.differences[:_MOST_DIFFERENCES]:
        kind: Literal["warm", "computed", "cold"] = "computed" if it.cached == 0 else "warm"
        if it.is_cold:
            kind = "cold"
        size = float(f"{it.size:.4g}")
        yield ProbeDifference(it.request, kind, it.beside, it.cached, it.place, size, it.tolerance)


def _notes(done: Probed) -> Iterator[str]:
    """Yield notes that a reader of the verdict needs."""
    yield from done.notes
    steps = done.history.steps
    answers = [answer for step in steps for answer in step.answers]
    if noisy := sum(step.is_noisy for step in steps):
        yield (
            f"behind {noisy:,} of {len(steps):,} steps the stream of events did not become quiet; the probe "
            "waited in vain, and judges no W8 there: is the server yours alone?"
        )
    if not done.history.head.has_ids:
        yield "prompts were sent as texts: the server refuses token ids, or counts other ones"
    tells_cached = any(answer.cached is not None for answer in answers)
    if done.history.head.cold == "salt" and answers and not tells_cached:
        yield "cold requests may have been warm, because the server reports no cached tokens"
    if answers and not any(place.top for answer in answers for place in answer.places):
        yield "the server tells no log-probabilities, so that only other tokens would show"
    if any(isinstance(place.token, str) for answer in answers for place in answer.places):
        yield "the server tells no token ids, so that no prompt went on with an answer"
