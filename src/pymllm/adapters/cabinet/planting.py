"""Put a fault into running code, and take it out again.

A fault is one or more edits of a function's text. The edited text is compiled, and the function object gets
the new code for the time of a ``with`` block: whoever imported the function, bound it or registered it runs
the fault, without a copy of the module and without a changed file.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import importlib
import inspect
import linecache
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType

__all__ = ["Edit", "StaleEditError", "planted"]


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of one function.

    Parameters
    ----------
    target : str
        ``"package.module:Class.function"``, where it is defined.
    old : str
        What the function's text says exactly once; several lines as they stand, with their indentation
        counted from the first.
    new : str
        What it says instead; further lines are indented like the line that ``old`` begins in. Default values
        of parameters stay what they were.
    """

    target: str
    old: str
    new: str


class StaleEditError(Exception):
    """The code has changed and an edit no longer fits it: bring the edit up to date."""


@contextlib.contextmanager
def planted(edits: Sequence[Edit]) -> Iterator[None]:
    """Run the code of the block with faults in it.

    Parameters
    ----------
    edits : sequence of Edit
        Several of one function are made one after the other.

    Raises
    ------
    StaleEditError
        A target is gone, what an edit looks for is not there exactly once, or the edited text does not
        compile; nothing was changed then.
    """
    targets = dict.fromkeys(edit.target for edit in edits)
    codes = [_with_faults(target, [edit for edit in edits if edit.target == target]) for target in targets]
    sound = [(function, function.__code__) for function, _ in codes]
    for function, code in codes:
        function.__code__ = code
    try:
        yield
    finally:
        for function, code in sound:
            function.__code__ = code


def _with_faults(target: str, edits: list[Edit]) -> tuple[FunctionType, CodeType]:
    function = _find(target)
    text = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        text = _edited(text, edit)
    return function, _compiled(function, text, target)


def _find(target: str) -> FunctionType:
    """Return the function behind a target, out of its property or static method."""
    module, _, path = target.partition(":")
    found = importlib.import_module(module)
    for name in path.split("."):
        if name not in vars(found):
            raise StaleEditError(f"{target}: {found!r} has no {name} of its own")
        found = vars(found)[name]
    for wrapped in ("fget", "__func__"):
        found = getattr(found, wrapped, found)
    if not isinstance(found, FunctionType):
        raise StaleEditError(f"{target} is a {type(found).__name__}, not a function")
    return found


def _edited(text: str, edit: Edit) -> str:
    places = list(_places(text, *edit.old.splitlines()))
    if len(places) != 1:
        raise StaleEditError(f"{edit.target} has {edit.old!r} {len(places)} times, not once")
    start, end, indent = places[0]
    return text[:start] + edit.new.replace("\n", "\n" + indent) + text[end:]


def _places(text: str, first: str, *rest: str) -> Iterator[tuple[int, int, str]]:
    """Find where the lines stand: start, end, and the indentation of the line of the start."""
    for found in re.finditer(re.escape(first), text):
        line = text[text.rfind("\n", 0, found.start()) + 1 :]
        indent = line[: len(line) - len(line.lstrip(" "))]
        whole = first + "".join(f"\n{indent}{more}" for more in rest)
        if text.startswith(whole, found.start()):
            yield found.start(), found.start() + len(whole), indent


def _compiled(function: FunctionType, text: str, target: str) -> CodeType:
    """Compile a function's text to what can take the place of its code."""
    name = f"<fault in {target}>"
    try:
        definition = ast.parse(text, name).body[0]
    except SyntaxError as error:
        raise StaleEditError(f"{target} with its edits is no Python any more: {error}") from error
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list.clear()
    # Inside another function, so that super() finds its class where the old code found it.
    tree = ast.parse(f"def outer(__class__):\n    return {function.__name__}", name)
    assert isinstance(tree.body[0], ast.FunctionDef)
    tree.body[0].body.insert(0, definition)
    code = compile(tree, name, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    namespace: dict[str, Callable[[None], FunctionType]] = {}
    exec(code, function.__globals__, namespace)
    # Tracebacks show the text with the fault.
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    return namespace["outer"](None).__code__
