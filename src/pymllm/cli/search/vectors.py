"""The command ``pymllm vectors``: programs with expected results, played on an adapter or made."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from pymllm.cli import options
from pymllm.cli.output import complain, say
from pymllm.cli.store import keep_run
from pymllm.cli.tables import draw, draw_document, make_table, progress_bar, tell
from pymllm.documents.faults import ShownRow, VectorFaultsDocument, VectorRow, VectorsDocument
from pymllm.errors import AdapterError
from pymllm.history.claims import CLAIMS
from pymllm.history.operations import KINDS
from pymllm.oracle.verdicts import Verdict
from pymllm.report.quantities import count_of
from pymllm.text_file import cut, read_json, read_text_file, write_text_file
from pymllm.torch_extra import require_torch
from pymllm.vectors.claims import Claimant, percent

if TYPE_CHECKING:
    from pymllm.vectors.run import Run

_T = TypeVar("_T")
_FOLDER = Path("vectors/v1")
_PAGE = Path("docs/vectors.md")

_folder = click.option(
    "--vectors",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    default=_FOLDER,
    help="Folder with the files of vectors, one for each kind.",
)


@click.group("vectors", short_help="Play vectors: programs with their expected results, as data.")
def vectors_command() -> None:
    """Play or make vectors: programs with the expected result of each step, as data to vendor.

    docs/vectors.md has the format, and runners of one file each.
    """


@vectors_command.command("run", short_help="Play vectors on an implementation.")
@options.adapter_to_run
@options.command(multiple=False)
@_folder
@click.option(
    "--known",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help='Known deviations: a JSON object of ids of vectors and reasons, {"slots-A2-0f3c81d2": "..."}.',
)
@options.timeout
@options.store
@options.json
@options.progress
def run_command(
    adapter: str | None,
    command: str | None,
    folder: Path,
    known: Path | None,
    timeout: float,
    store: Path | None,
    as_json: bool,
    progress: str,
) -> int:
    """Play the vectors of an adapter's kind, and compare each step with its expected result.

    Vectors that need a missing claim are skipped. No oracle takes part: a runner in any language does the
    same.

    Exit status: 0 if no vector failed but known ones, 1 if one did, 2 for bad input, 3 if the adapter cannot
    be examined, or every vector was skipped.
    """
    entry = options.find_adapter_or_refuse(options.name_of_one(adapter, command))
    from pymllm.vectors.run import Task, load_all, run_vectors
    from pymllm.work.workers import Lost, ask

    files = _read(folder, load_all)
    reasons = {} if known is None else _read_known(known)
    ids = {it.id for _, vectors in files.values() for it in vectors}
    for id in reasons:
        if id not in ids:
            raise click.UsageError(f"{known}: {cut(repr(id))} is no vector of {folder}.")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    most = max(len(vectors) for _, vectors in files.values())
    with progress_bar(progress, "vectors", most, unit="") as show:
        answer = ask(run_vectors, Task(entry.name, files), timeout, show)
    if isinstance(answer, Lost):
        raise AdapterError(entry.name, answer.message)
    if answer.kind not in files:
        raise click.UsageError(f"{folder} has no vectors of kind {answer.kind}, which {entry.name} is of.")
    document = _document(answer, reasons)
    keep_run(store, document)
    return tell(document, lambda it: draw_document(it, _played(it)), as_json)


def _read(folder: Path, load: Callable[[Path], _T]) -> _T:
    if not folder.is_dir():
        raise click.UsageError(f"--vectors: there is no folder {folder}; name the one with the vectors.")
    with options.refusing_unreadable():
        found = load(folder)
    if not found:
        raise click.UsageError(f"--vectors: {folder} has no file of vectors, *.jsonl.")
    return found


def _read_known(path: Path) -> dict[str, str]:
    with options.refusing_unreadable():
        text = read_text_file(path)
    try:
        plain = read_json(text)
        if not isinstance(plain, dict) or not all(isinstance(it, str) for it in plain.values()):
            raise ValueError("it must be an object of reasons, by the ids of vectors")
    except ValueError as error:
        raise click.UsageError(f"{path}: {error}.") from None
    return plain


def _document(run: Run, reasons: dict[str, str]) -> VectorsDocument:
    rows = tuple(
        VectorRow(it.id, it.law, it.says, played.verdict, played.step, played.why, reasons.get(it.id, ""))
        for it, played in run.played
    )
    counts = Counter(row.verdict for row in rows)
    unknown = sum(row.verdict == "failed" and not row.known for row in rows)
    verdict = (
        Verdict.VIOLATED if unknown else Verdict.UNKNOWN if counts["skipped"] == len(rows) else Verdict.HOLDS
    )
    return VectorsDocument(
        adapter=run.adapter,
        kind=run.kind,
        vectors_version=run.version,
        verdict=verdict,
        exit_status=verdict.exit_status,
        passed=counts["passed"],
        failed=counts["failed"],
        other_way=counts["other way"],
        skipped=counts["skipped"],
        unknown=unknown,
        unexpected=tuple(row.id for row in rows if row.known and row.verdict in ("passed", "other way")),
        vectors=rows,
    )


def _played(document: VectorsDocument) -> str:
    """Return words for the share of the vectors that was played."""
    total = len(document.vectors)
    played = total - document.skipped
    return (
        f"played {played} of {total} vectors ({percent(played, total)})"
        if played
        else f"nothing was played of {total} vectors"
    )


@vectors_command.command("faults", short_help="Tell which planted faults vectors show to who claims what.")
@click.option(
    "--claims",
    metavar="CLAIM,...",
    help="Claims of the implementation, such as pool,extra_key,exact_lru; without this, everything.",
)
@click.option(
    "--kind", type=click.Choice(KINDS), default="prefix", show_default=True, help="Of the implementation."
)
@click.option(
    "--page-size",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="1: the implementation has only pages of one token; more: only larger pages; without this, both.",
)
@_folder
@options.json
@options.progress
def faults_command(
    claims: str | None, kind: str, page_size: int | None, folder: Path, as_json: bool, progress: str
) -> int:
    """Plant each fault of a kind, and play the vectors that an implementation of some claims can play.

    So it shows how many faults a run of these vectors can find in that implementation: how many of them there
    are, which share of the planted faults they show, and which faults pass unseen.

    Exit status: 0 if done, 2 for bad input, 3 if there is no vector for these claims.
    """
    names = None if claims is None else frozenset(it.strip() for it in claims.split(",") if it.strip())
    for name in sorted(names or ()):
        if name not in CLAIMS or kind not in CLAIMS[name].kinds.split():
            right = ", ".join(it for it, claim in CLAIMS.items() if kind in claim.kinds.split())
            raise click.UsageError(f"--claims: {cut(repr(name))} is none of kind {kind}, which has {right}.")
    require_torch("pymllm vectors faults")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from pymllm.vectors.make import try_faults
    from pymllm.vectors.run import load_all
    from pymllm.vectors.shares import faults_of, share_of

    files = _read(folder, load_all)
    if kind not in files:
        raise click.UsageError(f"{folder} has no vectors of kind {kind}.")
    header, vectors = files[kind]
    claimant, faults = Claimant(kind, names, page_size), faults_of(kind)
    own = {kind: tuple(it for it in vectors if claimant.plays(kind, it))}
    kills = try_faults(own, faults, partial(progress_bar, progress, unit=""))
    found = share_of(claimant, {kind: vectors}, kills)
    document = VectorFaultsDocument(
        kind=kind,
        claims=None if names is None else tuple(sorted(names)),
        page_size=page_size,
        vectors_version=header.version,
        exit_status=0 if found.vectors else 3,
        available=found.of,
        vectors=found.vectors,
        shown=found.faults,
        faults=tuple(ShownRow(it.id, it.title, it.laws, found.shown[it.id]) for it in faults),
    )
    return tell(document, make_text_of_faults, as_json)


def make_text_of_faults(document: VectorFaultsDocument) -> str:
    """Return text on the faults that claims show: their number, then the faults that pass unseen."""
    claims = "everything" if document.claims is None else ", ".join(document.claims) or "nothing"
    size, played, faults = document.page_size, len(document.vectors), len(document.faults)
    pages = "" if size is None else f", with pages of {'one token' if size == 1 else 'several tokens'}"
    head = [
        f"{document.kind} that claims {claims}{pages}",
        f"{played} of {document.available} vectors {document.vectors_version} apply "
        f"({percent(played, document.available)})",
        f"they show {document.shown} of {faults} planted faults ({percent(document.shown, faults)})",
    ]
    unseen = [row for row in document.faults if not row.vectors]
    if not unseen:
        return "\n".join(head)
    table = make_table("not shown", "laws", "what is wrong")
    for row in unseen:
        table.add_row(row.id, ", ".join(row.laws), row.title)
    return "\n".join([*head, "", draw(table).rstrip("\n")])


@vectors_command.command("make", short_help="Make the vectors of a folder again.")
@_folder
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    default=_PAGE,
    help="The page whose table of vectors by fault is written, too.",
)
@click.option("--check", is_flag=True, help="Write nothing; end with 1 where a file would change.")
@click.option(
    "--search", is_flag=True, help="Also search for programs that show faults which no vector shows."
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="With --search: look for no further fault after so many minutes of processor time.",
)
@options.progress
def make_command(folder: Path, page: Path, check: bool, search: bool, minutes: float, progress: str) -> int:
    """Derive the expectations of vectors, plant each of our faults, and keep the vectors that show one.

    The same bytes come out each time. With --search, which takes long, vectors are added for faults that none
    of them shows.

    Exit status: 0 if done, 1 with --check if a file differs, 2 for bad input.
    """
    if check and search:
        raise click.UsageError("--check compares with existing files, --search adds to them; choose one.")
    if not folder.is_dir():
        raise click.UsageError(f"--vectors: there is no folder {folder}; name the one with the vectors.")
    require_torch("pymllm vectors make")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from pymllm.vectors.make import make_vectors
    from pymllm.vectors.page import make_page, tell_of

    with options.refusing(str(folder)), options.refusing_unreadable():
        made = make_vectors(
            folder,
            is_search=search,
            seconds=60 * minutes,
            progress=partial(progress_bar, progress, unit=""),
        )
    with options.refusing_unreadable():
        there = page.read_text(encoding="utf-8") if page.is_file() else ""
        wanted = {folder / name: text for name, text in made.files().items()}
        wanted[page] = make_page(made, there)
        old = {path: path.read_text(encoding="utf-8") for path in wanted if path.is_file()}
        gone = sorted(set(folder.glob("*.jsonl")) - set(wanted))
    changed = sorted(path for path, text in wanted.items() if old.get(path) != text)
    for path in [*changed, *gone]:
        complain(f"{path} {'differs' if check else 'is removed' if path in gone else 'is written'}")
    if not check:
        with options.refusing_unreadable():
            for path in changed:
                write_text_file(path, wanted[path])
            for path in gone:
                path.unlink()
    count = sum(map(len, made.vectors.values()))
    if made.unsearched:
        left = count_of(len(made.unsearched), "fault")
        complain(f"{left} not looked for: {minutes:g} minutes are over; raise --minutes for the same result")
    say(f"{count_of(count, 'vector')} {tell_of(made)}")
    return int(check and bool(changed or gone))
