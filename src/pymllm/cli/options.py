"""Inputs that several commands share, checked before work begins: values, options, adapters and files.

A file may be anybody's. The adapter that it names is taken from it where that is a name of the registry,
which nobody but this package fills; a module or a command in it is code that its author chose.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal, localcontext
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pymllm.adapters.base import AdapterClass
from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.process.command_name import PREFIX
from pymllm.adapters.registry import OWN, find_adapter
from pymllm.adapters.registry import adapters as all_adapters
from pymllm.cli.output import complain
from pymllm.cli.store import refuse_unwritable
from pymllm.errors import AdapterError, ConversationError, ProgramError, UsageError
from pymllm.history.config_limits import check_config
from pymllm.history.files import Config, Deviation, History, load_histories, load_history
from pymllm.oracle.laws import LAWS, Law, find_law
from pymllm.text_file import cut, did_you_mean, read_json
from pymllm.torch_extra import why_no_torch

if TYPE_CHECKING:
    from pymllm.work.shards import Shard


@contextmanager
def refusing(file: str = "") -> Iterator[None]:
    """Turn an error about an input into a one-line refusal that names the input's file."""
    try:
        yield
    except (UsageError, ProgramError) as error:
        raise click.UsageError(f"{file and f'{file}: '}{error}".rstrip(".") + ".") from error


@contextmanager
def refusing_unreadable() -> Iterator[None]:
    """Turn an error in reading or writing a file or folder into a refusal."""
    try:
        yield
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}".rstrip(".") + ".") from error


# -- kinds of values ---------------------------------------------------------------------------------------

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_NUMBER = re.compile(r"(\d+(?:[_,]\d+)*(?:\.\d+)?)([kmg]i?)?", re.IGNORECASE | re.ASCII)
# Slots are int32 numbers, and a pool has a page more than its size.
_TOKENS_MAX = 2**31 - 1
_DIGITS = re.compile(r"[+-]?\d+(_\d+)*", re.ASCII)
_DIGITS_MAX = 100


def whole(low: int, high: int) -> Callable[[object], int]:
    """Return a reader of integers that refuses numbers out of bounds and names both bounds."""

    def n(value: object) -> int:
        text = str(value).strip()
        # Python reads no number of thousands of digits, and says so in words of its own.
        if not _DIGITS.fullmatch(text):
            raise click.BadParameter(f"{cut(text)!r} is not a whole number in {low}..{high}.")
        number = int(text) if len(text) <= _DIGITS_MAX else None
        if number is None or not low <= number <= high:
            raise click.BadParameter(f"{cut(text)} is not in the range {low}<=x<={high}.")
        return number

    return n


def tokens(value: object) -> int:
    """Read a number of tokens: ``200000``, ``200_000``, ``200k``, ``1.5M``, ``1Mi`` (1,048,576)."""
    text = str(value).strip()
    found = _NUMBER.fullmatch(text) if len(text) <= _DIGITS_MAX else None
    if found is None:
        way = "write 200000, 200k, 1.5M or 1Mi."
        raise click.BadParameter(f"{cut(text)!r} is not a number of tokens in 1..{_TOKENS_MAX}; {way}")
    number, factor = found.groups(default="")
    with localcontext(prec=2 * _DIGITS_MAX):  # no digit is lost
        count = Decimal(re.sub("[_,]", "", number)) * _FACTORS[factor.lower()]
    if count != int(count):
        raise click.BadParameter(f"{text!r} is {count} tokens, not a whole number.")
    if not 1 <= count <= _TOKENS_MAX:
        raise click.BadParameter(f"{text!r} is {int(count)} tokens, not in 1..{_TOKENS_MAX}.")
    return int(count)


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])(i?)b", re.IGNORECASE | re.ASCII)


def is_size(value: str) -> bool:
    """Tell whether a text is a number of bytes with a unit, such as ``80GiB``."""
    return len(value) <= _DIGITS_MAX and _SIZE.fullmatch(value.strip()) is not None


def size(value: str) -> int:
    """Read a number of bytes: ``80GiB``, ``512MiB``, ``80GB`` (80,000,000,000)."""
    found = _SIZE.fullmatch(value.strip()) if len(value) <= _DIGITS_MAX else None
    if found is None:
        raise click.BadParameter(f"{cut(value)!r} is not a number of bytes; write 80GiB, 512MiB or 80GB.")
    number, unit, binary = found.groups()
    return int(Decimal(number) * (1024 if binary else 1000) ** (" kmgt".index(unit.lower())))


class Amount(click.FloatRange):
    """An option type for a number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a number; refuse ``nan``, which no bound excludes."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            self.fail(f"{cut(str(value))!r} is not a number.", param, ctx)
        if math.isinf(number):
            self.fail(f"{cut(str(value))!r} is not in the range {self._describe_range()}.", param, ctx)
        return float(super().convert(number, param, ctx))


def json_object(value: object) -> Config:
    """Read an adapter's configuration: a JSON object of integers, strings, true, false and null."""
    if isinstance(value, dict):
        return value
    try:
        config: Any = read_json(str(value))
        if not isinstance(config, dict):
            raise ValueError(f"it is {cut(str(value))}; it must be an object")
        for key, each in config.items():
            if not isinstance(each, int | str | None):
                wanted = "an integer, a string, true, false or null"
                raise ValueError(f"{cut(key)} is {cut(repr(each))}; it must be {wanted}")
        check_config(config)
    except ValueError as error:
        raise click.BadParameter(f"{cut(repr(value))}: {error}".rstrip(".") + ".") from None
    return dict(config)


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """Return a reader of names that refuses an unknown name and lists the known ones."""

    def read(text: str) -> str:
        known = list(names)
        if text not in known:
            near = did_you_mean(text, known)
            raise click.BadParameter(f"{cut(text)!r} is not one of {', '.join(known)}{near}.")
        return text

    return read


_SETTING = re.compile(r"[a-z][a-z-]*=")


def read_settings(text: str, readers: Mapping[str, Callable[[str], Any]]) -> tuple[str, dict[str, Any]]:
    """Read ``NAME,KEY=VALUE,...`` into the name, which may contain commas, and values by key."""
    parts = text.split(",")
    first = next((place for place, part in enumerate(parts) if _SETTING.match(part)), len(parts))
    given: dict[str, Any] = {}
    for part in parts[first:]:
        key, _, value = part.partition("=")
        name = key.replace("-", "_")
        if key not in readers:
            known = f", which are {', '.join(readers)}" if readers else "; there are none"
            raise click.BadParameter(f"{cut(part)!r} is no setting here{known}.")
        if name in given:
            raise click.BadParameter(f"{key} is given twice; give it once.")
        try:
            given[name] = readers[key](value)
        except click.BadParameter as error:
            raise click.BadParameter(f"{key}: {error.message}") from None
    return ",".join(parts[:first]), given


def read_window(context: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """Read ``TOKENS[,capacity=TOKENS]``: the window, and its layers' slots, which set another parameter."""
    if text is None:
        return None
    window, given = read_settings(text, {"capacity": tokens})
    context.params.update({f"swa_{key}": slots for key, slots in given.items()})
    return tokens(window)


class OutputFile(click.Path):
    """An option type for a file to write in an existing, writable folder."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse a file in a missing or read-only folder, before the work that fills the file."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.absolute().parent.is_dir():
            self.fail(f"{path}: there is no folder {path.parent}; make it first.", param, ctx)
        if param is not None and not os.path.exists(path):  # which a name that is too long is not
            refuse_unwritable(param.opts[0], path.parent)
        return path


SEED = whole(0, 2**63 - 1)
OUTPUT_FILE = OutputFile()
OUTPUT_FOLDER = click.Path(file_okay=False, path_type=Path)

# -- options -----------------------------------------------------------------------------------------------


def complete_adapter(context: click.Context, param: click.Parameter, begin: str) -> list[str]:
    """Return the names of adapters that begin with the typed text, for shell completion."""
    return [entry.name for entry in all_adapters() if entry.name.startswith(begin)]


adapters = click.option(
    "--adapter",
    "adapters",
    metavar="NAME",
    shell_complete=complete_adapter,
    multiple=True,
    show_default="all of our own classes",
    help="A name of `pymllm adapters`, or module:Class; may be repeated.",
)
adapter = click.option(
    "--adapter",
    metavar="NAME",
    shell_complete=complete_adapter,
    show_default="the adapter that FILE names, if `pymllm adapters` lists it",
    help="A name of `pymllm adapters`, or module:Class.",
)
adapter_to_run = click.option(
    "--adapter",
    metavar="NAME",
    shell_complete=complete_adapter,
    help="A name of `pymllm adapters`, or module:Class.",
)
json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
progress = click.option(
    "--progress",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    envvar="PYMLLM_PROGRESS",
    show_envvar=True,
    help="Show progress on standard error: a bar on a terminal, else a line every ten seconds; on: a line at "
    "the beginning, too.",
)
jobs = click.option(
    "--jobs",
    type=whole(1, 1024),
    show_default="the number of processors",
    callback=lambda context, param, jobs: jobs or len(os.sched_getaffinity(0)),
    help="Number of worker processes; adapters never run in the main process.",
)


def _read_shard(context: click.Context, param: click.Parameter, text: str | None) -> Any:
    if text is None:
        return None
    from pymllm.work.shards import read_shard

    is_typed = context.get_parameter_source(str(param.name)) is not ParameterSource.ENVIRONMENT
    try:
        found = read_shard(text, os.environ)
    except UsageError as error:
        raise click.UsageError(f"{'--shard ' if is_typed else f'{_SHARD_VARIABLE}='}{error}.") from None
    return found if is_typed else replace(found, origin=_SHARD_VARIABLE)


def tell_shard_of_environment(shard: Shard | None) -> None:
    """Report that a command does only a part because an environment variable is set."""
    if shard is not None and shard.origin == _SHARD_VARIABLE:
        complain(f"this is shard {shard}, as {_SHARD_VARIABLE} says")


_SHARD_VARIABLE = "PYMLLM_SHARD"
shard = click.option(
    "--shard",
    metavar="I/N",
    envvar=_SHARD_VARIABLE,
    show_envvar=True,
    callback=_read_shard,
    help="Do only part I of N, of the same work on every machine. env: read I and N from Slurm or GitLab; "
    "env/N: read I from Slurm or Kubernetes.",
)
keep = click.option(
    "--keep",
    type=OUTPUT_FILE,
    help="Write each result into FILE at once; the next run reuses them and does only the rest.",
)
timeout = click.option(
    "--timeout",
    type=Amount(0, 1_000_000),
    metavar="SECONDS",
    default=30.0,
    help="Longest time for one call of an adapter, or one answer of a server; "
    "a longer one counts as hung. 0: no limit.",
)


def demand_writable(context: click.Context, param: click.Parameter, folder: Path | None) -> Path | None:
    """Refuse a typed folder that is not writable, but accept a default, which may not be needed."""
    if folder is not None and context.get_parameter_source(str(param.name)) is not ParameterSource.DEFAULT:
        refuse_unwritable(param.opts[0], folder)
    return folder


store = click.option(
    "--store",
    type=OUTPUT_FOLDER,
    metavar="FOLDER",
    callback=demand_writable,
    help="Also keep the result in this store of runs, which pymllm report reads.",
)


KNOWN_FILE = "pymllm.known"
"""The key of a command's context for the file that ``--deviations`` named."""


def _read_known(context: click.Context, param: click.Parameter, path: Path | None) -> tuple[Deviation, ...]:
    if path is None:
        return ()
    context.meta[KNOWN_FILE] = path
    from pymllm.search.deviations import read_deviations  # and the laws; --help does without

    with refusing(str(path)), refusing_unreadable():
        return read_deviations(path)


deviations = click.option(
    "--deviations",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    callback=_read_known,
    help="Known differences, as described in docs/verify.md: the search passes over them.",
)
programs = click.option(
    "--output",
    type=OUTPUT_FOLDER,
    metavar="FOLDER",
    default="runs",
    callback=demand_writable,
    help="Folder for the programs that break a law.",
)


def of(command: click.Command, *names: str) -> Callable[[Any], Any]:
    """Return a decorator that adds some options of another command to a command."""
    by_name = {str(option.name): option for option in command.params}

    def add(function: Any) -> Any:
        # As click's own decorators do; the outermost comes first.
        params = function.__dict__.setdefault("__click_params__", [])
        params.extend(by_name[name] for name in reversed(names))
        return function

    return add


def command(*, multiple: bool) -> Callable[[Any], Any]:
    """Return the option for a command that takes one or several adapters."""
    return click.option(
        "--command",
        "commands" if multiple else "command",
        metavar="'PROGRAM ARGS'",
        multiple=multiple,
        help="A program that speaks the protocol of docs/protocol.md"
        + ("; may be repeated." if multiple else ".")
        + f" Short for --adapter '{PREFIX}PROGRAM ARGS'.",
    )


def names_of(adapters: Sequence[str], commands: Sequence[str]) -> tuple[str, ...]:
    """Return the names of adapters and commands together, as the registry takes them."""
    return (*adapters, *(f"{PREFIX}{command}" for command in commands))


def name_of_one(adapter: str | None, command: str | None) -> str:
    """Return the name of the only adapter or command that was given."""
    if adapter is not None and command is None:
        return adapter
    if command is not None and adapter is None:
        return f"{PREFIX}{command}"
    raise click.UsageError("name one implementation, with --adapter or --command.")


def refuse_typed(names: Iterable[str], why: str, way: str = "; leave it out") -> None:
    """Refuse some parameters of a command if they were typed, and say why they would be ignored."""
    context = click.get_current_context()
    for param in context.command.params:
        is_typed = context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
        if param.name in names and is_typed:
            raise click.UsageError(f"{param.opts[0]}: {why}{way}.")


# -- adapters and laws ------------------------------------------------------------------------------------


def find_adapter_or_refuse(name: str, *, is_run: bool = True) -> AdapterEntry:
    """Return the entry of an adapter; refuse an unknown name or missing requirements, with advice."""
    with refusing():
        entry = find_adapter(name)
    _refuse_without_torch(entry)
    missing = entry.find_missing() if is_run else None
    if missing is not None:
        raise click.UsageError(f"{missing}.")
    if not name.startswith(PREFIX):
        add_folder_of(name)
    return entry


def add_folder_of(name: str) -> None:
    """Add the working folder to the import path, for ``module:Class``."""
    if ":" in name and "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def find_adapters_or_own(names: Iterable[str]) -> tuple[AdapterEntry, ...]:
    """Return the entries of some adapters, each once; by default those of this package's classes."""
    found = tuple(find_adapter_or_refuse(name) for name in dict.fromkeys(names))
    if not found:
        _refuse_without_torch(*OWN)
    return found or OWN


def _refuse_without_torch(*entries: AdapterEntry) -> None:
    reason = why_no_torch()
    names = [entry.name for entry in entries if entry.needs_torch]
    if reason is not None and names:
        subject = f"adapter {names[0]}" if len(names) == 1 else f"each of {', '.join(names)}"
        raise click.UsageError(f"{subject} {reason}")


def load_or_refuse(name: str) -> AdapterClass:
    """Import the class of an adapter, in a process that may run its code; refuse it on errors."""
    from pymllm.machines.adapter_calls import load_class  # not before names are found

    try:
        return load_class(find_adapter(name))
    except AdapterError as error:
        if ":" not in name or isinstance(error, ConversationError):
            raise
        raise click.UsageError(f"{error}".rstrip(".") + ".") from None


def find_law_or_refuse(id: str) -> Law:
    """Return a law; raise `click.UsageError` for an unknown id."""
    try:
        return find_law(id)
    except ValueError:
        nearest = did_you_mean(id.upper(), [law.id for law in LAWS], 3)
        raise click.UsageError(
            f"no law {cut(id)!r}{nearest}; docs/specification has all laws, pymllm verify --verbose "
            "those of an adapter."
        ) from None


# -- what a file names ------------------------------------------------------------------------------------

_LONGEST_SHOWN = 200  # of a name that is shown
_LONGEST_FILE_NAME = 100


def is_of_registry(name: str) -> bool:
    """Tell whether a name from a file is safe: its code is in this package or installed."""
    return any(entry.name == name for entry in all_adapters())


def adapter_of_file(file: str, named: str, given: str | None) -> str:
    """Return the name of the adapter on which to run a file."""
    if given is not None:
        return given
    if is_of_registry(named):
        return named
    if ":" not in named:
        find_adapter_or_refuse(named)  # which knows the names that are near
    if len(named) > _LONGEST_SHOWN:
        named, way = f"{named[:_LONGEST_SHOWN]}...", "--adapter or --command"
    elif named.startswith(PREFIX):
        way = f"--command {quote(named.removeprefix(PREFIX))}"
    else:
        way = f"--adapter {quote(named)}"
    raise click.UsageError(
        f"{file}: names the adapter {named!r}, which may run any code; if you trust it, add {way} "
        "(from a file pymllm takes only names that `pymllm adapters` lists)."
    )


def read_program(file: str) -> History:
    """Read a history; raise `click.UsageError` for an unreadable file, `TraceError` for an invalid one."""
    path, name = split_program(file)
    try:
        if not name:
            return load_history(path)
        histories = load_histories(path)
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    if name not in histories:
        nearest = did_you_mean(name, list(histories), 3)
        raise click.UsageError(f"{path}: no program has the name {cut(repr(name))}{nearest}.")
    return histories[name]


def split_program(file: str) -> tuple[Path, str]:
    """Return the path and the name in ``FILE`` or ``FILE#NAME``; the name may be empty."""
    path, mark, name = file.rpartition("#")
    return (Path(path), name) if mark and name and not os.path.exists(file) else (Path(file), "")


def read_program_for(file: str, adapter: str | None, command: str | None) -> tuple[History, str]:
    """Read a history, and return it with the name of the adapter on which to run it."""
    if adapter is not None and command is not None:
        raise click.UsageError("--adapter and --command both name the program to run; give only one of them.")
    history = read_program(file)
    given = adapter if command is None else f"{PREFIX}{command}"
    return history, find_adapter_or_refuse(adapter_of_file(file, history.header.adapter, given)).name


def file_name_of(name: str) -> str:
    """Return a file name for a name or a whole command; a long one ends in a digest."""
    safe = re.sub(r"[^\w.-]+", "-", name)
    if len(safe) <= _LONGEST_FILE_NAME:
        return safe
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
    return f"{safe[:_LONGEST_FILE_NAME]}-{digest[:8]}"
