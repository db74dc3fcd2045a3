"""Options that several commands have, alike wherever they are found, and their kinds of values."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pymllm.adapters.process.command_name import PREFIX
from pymllm.history.config_limits import check_config
from pymllm.history.files import Config
from pymllm.text_file import cut, read_json

if TYPE_CHECKING:
    _IntParam = click.ParamType[int]
    _FloatParam = click.ParamType[float]
    _ConfigParam = click.ParamType[Config]
else:
    # Generic from click 8.4 on; older ones cannot be subscripted.
    _IntParam = _FloatParam = _ConfigParam = click.ParamType

# -- kinds of values ---------------------------------------------------------------------------------------

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_NUMBER = re.compile(r"(\d+(?:[_,]\d+)*(?:\.\d+)?)([kmg]i?)?", re.IGNORECASE | re.ASCII)
# Slots are int32 numbers, and a pool has a page more than its size.
_TOKENS_MAX = 2**31 - 1
_DIGITS = re.compile(r"[+-]?\d+(_\d+)*", re.ASCII)
_DIGITS_MAX = 100


class Whole(_IntParam):
    """A whole number within bounds."""

    name = "integer"

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read digits; a number below or above the bounds, however long, is refused with both."""
        text = str(value).strip()
        # Python reads no number of thousands of digits, and says so in words of its own.
        if not _DIGITS.fullmatch(text):
            self.fail(f"{cut(text)!r} is no whole number in {self.low}..{self.high}.", param, ctx)
        number = int(text) if len(text) <= _DIGITS_MAX else None
        if number is None or not self.low <= number <= self.high:
            self.fail(f"{cut(text)} is not in the range {self.low}<=x<={self.high}.", param, ctx)
        return number


class TokenCount(_IntParam):
    """A number of tokens: ``200000``, ``200_000``, ``200k``, ``1.5M``, ``1Mi`` (1,048,576)."""

    name = "tokens"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a number with an optional factor; a result below 1 or beyond int32 is refused."""
        text = str(value).strip()
        found = _NUMBER.fullmatch(text) if len(text) <= _DIGITS_MAX else None
        if found is None:
            self.fail(
                f"{cut(text)!r} is no number of tokens in 1..{_TOKENS_MAX}; write 200000, 200k, 1.5M or 1Mi.",
                param,
                ctx,
            )
        number, factor = found.groups(default="")
        with localcontext(prec=2 * _DIGITS_MAX):  # no digit is lost
            tokens = Decimal(re.sub("[_,]", "", number)) * _FACTORS[factor.lower()]
        if tokens != int(tokens):
            self.fail(f"{text!r} is {tokens} tokens, not a whole number.", param, ctx)
        if not 1 <= tokens <= _TOKENS_MAX:
            self.fail(f"{text!r} is {int(tokens)} tokens, not in 1..{_TOKENS_MAX}.", param, ctx)
        return int(tokens)


# A trace's clock, up to 10**13 ms, must move by an iteration, and what it adds up to must fit a line.
_MILLISECONDS_MIN, _MILLISECONDS_MAX = 0.01, 86_400_000


class Milliseconds(_FloatParam):
    """A time from ten microseconds to a day."""

    name = "ms"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a number; one below or above the bounds is refused."""
        try:
            milliseconds = float(str(value))
        except ValueError:
            milliseconds = math.nan
        if not _MILLISECONDS_MIN <= milliseconds <= _MILLISECONDS_MAX:
            bounds = f"{_MILLISECONDS_MIN}..{_MILLISECONDS_MAX}"
            self.fail(f"{cut(str(value))!r} is no number of milliseconds in {bounds}.", param, ctx)
        return milliseconds


class Amount(click.FloatRange):
    """A number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a number; ``nan`` is none, although no bound is above or below it."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            self.fail(f"{cut(str(value))!r} is no number.", param, ctx)
        if math.isinf(number):
            self.fail(f"{cut(str(value))!r} is not in the range {self._describe_range()}.", param, ctx)
        return float(super().convert(number, param, ctx))


class AdapterConfig(_ConfigParam):
    """What an adapter is built with: a JSON object of integers, strings, true, false and null."""

    name = "json"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Config:
        """Read a JSON object."""
        if isinstance(value, dict):
            return value
        text = str(value)
        try:
            config: Any = read_json(text)
            if not isinstance(config, dict):
                raise ValueError(f"it is {cut(text)}; it must be an object")
            for key, each in config.items():
                if not isinstance(each, int | str | None):
                    wanted = "an integer, a string, true, false or null"
                    raise ValueError(f"{cut(key)} is {cut(repr(each))}; it must be {wanted}")
            check_config(config)
        except ValueError as error:
            self.fail(f"{cut(repr(value))}: {error}.", param, ctx)
        return dict(config)


SEED = Whole(0, 2**63 - 1)
TOKENS = TokenCount()
MILLISECONDS = Milliseconds()
CONFIG = AdapterConfig()
OUTPUT_FILE = click.Path(dir_okay=False, path_type=Path)
OUTPUT_FOLDER = click.Path(file_okay=False, path_type=Path)

# -- options -----------------------------------------------------------------------------------------------

DEFAULT_TIMEOUT = 30.0
"""Seconds that one call of an adapter may take."""

adapters_option = click.option(
    "--adapter",
    "adapters",
    metavar="NAME",
    multiple=True,
    show_default="all of our own classes",
    help="A name of `pymllm adapters`, or module:Class; may be repeated.",
)
adapter_option = click.option(
    "--adapter",
    metavar="NAME",
    show_default="the one that the file names, if `pymllm adapters` has it",
    help="A name of `pymllm adapters`, or module:Class.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
progress_option = click.option(
    "--progress",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Bar on standard error; auto shows it on a terminal.",
)
jobs_option = click.option(
    "--jobs",
    type=Whole(1, 1024),
    metavar="N",
    show_default="the number of processors",
    help="Processes; what is examined never runs in this one.",
)
timeout_option = click.option(
    "--timeout",
    type=Amount(0, 1_000_000),
    metavar="SECONDS",
    default=DEFAULT_TIMEOUT,
    show_default=True,
    help="Most for one call of an adapter: what takes longer hangs. 0: no limit.",
)
store_option = click.option(
    "--store",
    type=OUTPUT_FOLDER,
    metavar="FOLDER",
    help="Keep the result in this store of runs, too, for pymllm report.",
)
planted_option = click.option(
    "--fault",
    "faults",
    metavar="ID",
    multiple=True,
    help="Only this fault of --cabinet, or of this package; may be repeated.",
)


def cabinet_option(help: str) -> Callable[[Any], Any]:
    """Return the option that names somebody's faults."""
    return click.option("--cabinet", "cabinets", metavar="MODULE:TABLE", multiple=True, help=help)


def command_option(*, multiple: bool) -> Callable[[Any], Any]:
    """Return the option for a command that takes adapters, one or several of them."""
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


def count_processes(jobs: int | None) -> int:
    """Return how many processes a command uses: without ``--jobs`` the processors it may run on."""
    return jobs or len(os.sched_getaffinity(0))
