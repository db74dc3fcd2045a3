"""Where functions stand in a running process, so that a change takes their place without any import.

Tests, adapters and tables hold the functions that they imported; whoever holds one has the changed one as
soon as its code is another.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from mutants import Change

Functions = dict[str, list[FunctionType]]
"""By their place; there is more than one where a function was made more than once."""


def name_place(code: CodeType) -> str:
    """Say where a code object was written."""
    return f"{code.co_filename}:{code.co_firstlineno}:{code.co_qualname}"


def find_functions(folder: Path) -> Functions:
    """Return all functions that this process has of a folder's files."""
    found: Functions = {}
    gc.unfreeze()  # what is frozen is listed nowhere
    for it in gc.get_objects():
        if type(it) is FunctionType and it.__code__.co_filename.startswith(f"{folder}/"):
            found.setdefault(name_place(it.__code__), []).append(it)
    return found


def find_lines(code: CodeType) -> frozenset[int]:
    """Return the lines that run when a function is called, and not when it is defined."""
    lines = {line for part in _all_codes(code) for _, _, line in part.co_lines() if line}
    return frozenset(lines - {code.co_firstlineno} or lines)


def _all_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_codes(constant)


def find_places(change: Change, path: Path) -> list[str]:
    """Return where the function of a change stands in the sound module."""
    return [name_place(code) for code in _codes_of(change, path.read_text(encoding="utf-8"), path)]


def find_codes(change: Change, path: Path) -> dict[str, CodeType]:
    """Return the changed code that a function is to have, by its place in the sound module.

    There is none where no code tells: a parameter's default changed, or what is taken from around it.
    """
    sound = _codes_of(change, path.read_text(encoding="utf-8"), path)
    changed = _codes_of(change, change.text, path)
    if any(old.co_freevars and not new.co_freevars for old, new in zip(sound, changed, strict=True)):
        changed = _codes_of(change, change.text, path, "if 0: __class__")  # the only super() is gone
    found = {name_place(old): (old, new) for old, new in zip(sound, changed, strict=True) if old != new}
    if any(old.co_freevars != new.co_freevars for old, new in found.values()):
        return {}
    return {place: new for place, (_, new) in found.items()}


def exchange(codes: dict[str, CodeType], functions: Functions) -> None:
    """Give functions the codes that `find_codes` found for their places; LookupError for an empty place.

    A module that is imported only when it is needed would come with its sound functions afterwards.
    """
    for place, code in codes.items():
        if place not in functions:
            raise LookupError(f"{place}: this process has no such function")
        for function in functions[place]:
            function.__code__ = code


def _codes_of(change: Change, text: str, path: Path, end: str = "") -> list[CodeType]:
    """Compile a function, with more code at its end if it would lose a closure that it does not need."""
    tree = ast.parse(text, str(path))
    for it in ast.walk(tree):
        if isinstance(it, ast.FunctionDef) and change.function.endswith(f".{it.name}"):
            for more in ast.parse(end).body:
                it.body.append(ast.fix_missing_locations(ast.copy_location(more, it)))
    module = compile(tree, str(path), "exec", dont_inherit=True)
    return [code for code in _all_codes(module) if f"{change.module}.{code.co_qualname}" == change.function]
