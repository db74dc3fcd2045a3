"""Planting a fault in running code, and removing the fault again.

A fault is one or more changes. An edit changes a function's text. The edited text is compiled, and the
function object gets the new code for the time of a ``with`` block: whoever imported the function, bound it or
registered it runs the fault, without a copy of the module and without a changed file. A replacement puts
something else in the place of a name.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import functools
import importlib
import inspect
import linecache
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

_WRAPPERS = (staticmethod, classmethod, property)
_PARAMETER = re.compile(r"(.+)\((\w+)\)")


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a function's source text, which keeps the default values of its parameters.

    ``old`` is what its text says exactly once, several lines as they stand, with their indentation counted
    from the first; further lines of ``new`` are indented like the line that ``old`` begins in.
    """

    target: str  # "package.module:Class.function", where it is defined
    old: str
    new: str

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules whose source code determines the effect of the edit."""
        return (self.target.partition(":")[0],)


@dataclass(frozen=True, slots=True)
class _Named:
    """A function or a class by its name, which is valid in every process."""

    place: str

    def find(self) -> Any:
        return functools.reduce(getattr, self.path.split("."), importlib.import_module(self.module))

    @property
    def module(self) -> str:
        return self.place.partition(":")[0]

    @property
    def path(self) -> str:
        return self.place.partition(":")[2]


@dataclass(frozen=True, slots=True)
class Replace:
    """A replacement for a constant, a class attribute, a default value or a whole function.

    The target is ``"package.module:NAME"``, ``"package.module:Class.attribute"``, or, for a parameter's
    default value, ``"package.module:Class.function(name)"``; a dataclass's field is one of
    ``Class.__init__(field)``. For a function ``by`` is another one with the same parameters: one of a module
    (else it could not be found in another process: `ValueError`), or the text that defines it, which runs
    among the names of the target's module, where ``sound`` is the function as it was. Parameters that it only
    hands on may be one ``**options``. ``was`` is the value that the target must have now, so that the fault
    goes stale when somebody changes it.

    A module that has imported a constant, or a function that is not replaced by a text, by its name keeps the
    sound one: name that module, too. What is said to each object alone, such as a field without a default, is
    set by a function: edit that.
    """

    target: str
    by: Any
    was: Any = ...

    def __post_init__(self) -> None:
        """Convert a function to its name."""
        if callable(self.by):
            path = getattr(self.by, "__qualname__", "<nothing>")
            if "<" in path:
                raise ValueError(
                    f"{self.target}: {self.by!r} has no name in a module; give a function of a module, "
                    "or its text"
                )
            object.__setattr__(self, "by", _Named(f"{self.by.__module__}:{path}"))

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules whose source code determines the effect of the replacement."""
        own = self.target.partition(":")[0]
        return (own, self.by.module) if isinstance(self.by, _Named) else (own,)


Change = Edit | Replace
"""A part of a fault: an edit or a replacement."""


class StaleEditError(Exception):
    """Raised when an edit or a replacement does not fit the changed code, and must be updated."""


Put = tuple[Any, str, Any]
"""An object, the name of its attribute, and the value to set."""


@contextlib.contextmanager
def planted(edits: Sequence[Change]) -> Iterator[None]:
    """Plant faults during a ``with`` block, several edits of one function one after another.

    `StaleEditError` where a target is gone or is changed in two ways, what an edit looks for is not there
    exactly once, the new text does not compile, or what replaces something does not fit or is the same;
    nothing was changed then.
    """
    with in_place(prepare(edits)):
        yield


def prepare(edits: Sequence[Change]) -> tuple[Put, ...]:
    """Return the values to set and their places, without setting any; raise errors as `planted`."""
    targets = dict.fromkeys(edit.target for edit in edits)
    return tuple(
        put for target in targets for put in _prepare(target, [it for it in edits if it.target == target])
    )


@contextlib.contextmanager
def in_place(puts: Sequence[Put]) -> Iterator[None]:
    """Set the values of `prepare` during a ``with`` block."""
    before = [
        (owner, name, vars(owner)[name] if name in vars(owner) else getattr(owner, name, _NOTHING))
        for owner, name, _ in puts
    ]
    try:
        for owner, name, value in puts:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is not _NOTHING:
                setattr(owner, name, value)
            elif hasattr(owner, name):
                delattr(owner, name)


_NOTHING = object()


def _prepare(target: str, changes: list[Change]) -> list[Put]:
    edits = [change for change in changes if isinstance(change, Edit)]
    if len(edits) == len(changes):
        function, code = _with_faults(target, edits)
        return [(function, "__code__", code)]
    change = changes[0]
    if len(changes) > 1 or not isinstance(change, Replace):
        raise StaleEditError(f"{target} is replaced, and changed {len(changes)} times; replace it once")
    by = _resolved(target, change.by)
    parameter = _PARAMETER.fullmatch(target)
    if parameter is not None:
        return [_with_default(_find(parameter[1]), parameter[2], by, change)]
    owner, name = _own(target)
    old = vars(owner)[name]
    if not isinstance(_unwrapped(old), FunctionType):
        _refuse_unfit(change, old, by)
        return [(owner, name, by)]
    function = _unwrapped(old)
    if isinstance(by, str):
        new = _defined(function, textwrap.dedent(by).strip() + "\n", target)
        _refuse_other_parameters(target, function, new)
        names = ("__code__", "__defaults__", "__kwdefaults__")
        sound = (sys.modules[function.__module__], _sound(target), _copy(function))
        return [sound, *((function, name, getattr(new, name)) for name in names)]
    if not callable(by):
        raise StaleEditError(f"{target} is a function, and {by!r} is none, nor a text that defines one")
    _refuse_other_parameters(target, function, by)
    wrapper = next((it for it in _WRAPPERS if isinstance(old, it)), None)
    if isinstance(old, property):
        return [(owner, name, property(by, old.fset, old.fdel, old.__doc__))]
    return [(owner, name, by if wrapper is None else wrapper(by))]


def _sound(target: str) -> str:
    """Return the name, unique by a blank, by which a replacement text calls the original function."""
    return f"sound {target}"


def _copy(function: FunctionType) -> FunctionType:
    """Return a copy of a function that keeps its code when the original's is replaced."""
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _resolved(target: str, by: object) -> Any:
    try:
        return by.find() if isinstance(by, _Named) else by
    except (ImportError, AttributeError) as error:
        raise StaleEditError(f"{target}: its replacement cannot be found: {error}") from error


def _refuse_unfit(change: Replace, old: object, by: object) -> None:
    """Raise an error for a replacement of an unexpected value, or by an equal value."""
    if change.was is not ... and not _is_same(change.was, old):
        raise StaleEditError(f"{change.target} is {old!r}, not {change.was!r}")
    if _is_same(by, old):
        raise StaleEditError(f"{change.target} is {old!r} already; the fault would change nothing")


def _is_same(one: object, other: object) -> bool:
    """Tell whether two values are equal and of the same type, so that 0 and False differ."""
    if one is other or type(one) is not type(other):
        return one is other
    try:
        return bool(one == other)
    except Exception:  # such as of arrays
        return False


def _refuse_other_parameters(target: str, old: FunctionType, new: Callable[..., object]) -> None:
    if new is old:
        raise StaleEditError(f"{target} is replaced by itself; the fault would change nothing")
    takes, instead = (inspect.signature(it).parameters for it in (old, new))
    named = [it.name for it in instead.values() if it.kind is not it.VAR_KEYWORD]
    if list(takes)[: len(named)] != named or len(named) == len(instead) < len(takes):
        raise StaleEditError(
            f"{target} takes ({', '.join(takes)}), and its replacement ({', '.join(instead)})"
        )


def _with_default(function: FunctionType, name: str, by: object, change: Replace) -> Put:
    """Return the change that sets another default value of a parameter, which must have one."""
    parameter = inspect.signature(function).parameters.get(name)
    if parameter is None or parameter.default is parameter.empty:
        raise StaleEditError(f"{change.target}: the function has no parameter {name} with a default value")
    _refuse_unfit(change, parameter.default, by)
    if parameter.kind is parameter.KEYWORD_ONLY:
        return function, "__kwdefaults__", {**(function.__kwdefaults__ or {}), name: by}
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = list(function.__defaults__ or ())
    defaults[positional.index(name) - len(positional)] = by
    return function, "__defaults__", tuple(defaults)


def _with_faults(target: str, edits: list[Edit]) -> tuple[FunctionType, CodeType]:
    function = _find(target)
    text = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        text = _edited(text, edit)
    return function, _defined(function, text, target).__code__


def _find(target: str) -> FunctionType:
    """Return the function of a target, without a surrounding property or static method."""
    owner, name = _own(target)
    found = _unwrapped(vars(owner)[name])
    if not isinstance(found, FunctionType):
        raise StaleEditError(f"{target} is a {type(found).__name__}, not a function")
    return found


def _own(target: str) -> tuple[Any, str]:
    """Return the object that has a target as its attribute, and the attribute's name."""
    module, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise StaleEditError(f"{target}: {error}") from error
    owner, name = found, ""
    for name in path.split("."):
        owner = found
        if name not in getattr(owner, "__dict__", {}):
            raise StaleEditError(f"{target}: {owner!r} has no {name} of its own")
        found = vars(owner)[name]
    return owner, name


def _unwrapped(found: Any) -> Any:
    for wrapped in ("fget", "__func__"):
        found = getattr(found, wrapped, found)
    return found


def _edited(text: str, edit: Edit) -> str:
    places = list(_places(text, *edit.old.splitlines()))
    if len(places) != 1:
        raise StaleEditError(f"{edit.target} has {edit.old!r} {len(places)} times, not once")
    start, end, indent = places[0]
    return text[:start] + edit.new.replace("\n", "\n" + indent) + text[end:]


def _places(text: str, first: str, *rest: str) -> Iterator[tuple[int, int, str]]:
    """Yield the places of some lines in a text, with the indentation of the first line."""
    for found in re.finditer(re.escape(first), text):
        line = text[text.rfind("\n", 0, found.start()) + 1 :]
        indent = line[: len(line) - len(line.lstrip(" "))]
        whole = first + "".join(f"\n{indent}{more}" for more in rest)
        if text.startswith(whole, found.start()):
            yield found.start(), found.start() + len(whole), indent


def _defined(function: FunctionType, text: str, target: str) -> FunctionType:
    """Return a function compiled from a text, whose code can replace another function's."""
    name = f"<fault in {target}>"
    try:
        (definition,) = ast.parse(text, name).body
    except (SyntaxError, ValueError) as error:
        raise StaleEditError(f"{target} with its fault is no Python function any more: {error}") from error
    if not isinstance(definition, ast.FunctionDef) or definition.name != function.__name__:
        raise StaleEditError(f"{target}: the text must define {function.__name__}, and nothing else")
    definition.decorator_list.clear()
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and node.id == "sound":
            node.id = _sound(target)
    # Inside another function, so that super() finds its class where the old code found it.
    tree = ast.parse(f"def outer(__class__):\n    return {function.__name__}", name)
    assert isinstance(tree.body[0], ast.FunctionDef)
    tree.body[0].body.insert(0, definition)
    code = compile(tree, name, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    namespace: dict[str, Callable[[None], FunctionType]] = {}
    exec(code, function.__globals__, namespace)
    # Tracebacks show the text with the fault.
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    new = namespace["outer"](None)
    if new.__code__.co_freevars != function.__code__.co_freevars:
        names = ", ".join({*new.__code__.co_freevars} ^ {*function.__code__.co_freevars})
        raise StaleEditError(f"{target} with its fault takes {names} from around it otherwise than before")
    return new
