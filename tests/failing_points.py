"""Calls that find no memory in the middle: every use of an array or a tensor, one failure at a time.

A *failing point* is a place of `pymllm.mem_cache` or `pymllm.core` that takes memory as it runs: a call of
a function of torch or NumPy, a method, an operator or an index of a tensor or an array, a copy of bytes, and
any call of an object that a test names, such as a pool or an observer. Patching names in modules reaches
the functions alone. So the code of these rooms is compiled again with each such place handed to a function
of this file, and put into the very functions that are there: no class, no object and no other test sees
another module.

Not among them, unless ``strict``: what NumPy does without memory that grows with the call. That is an element
or a view that is read, an element or a slice that is written from a number or an array of numbers, and
elements named by an int64 array that are written from a number or from an array of their own dtype. Neither
are Python's own ints, lists and dicts. What a call cannot take back is built of these alone.
"""

from __future__ import annotations

import array
import ast
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
import torch

T = TypeVar("T")

ROOMS: Final = ("pymllm.mem_cache", "pymllm.core")

_BYTES: Final = (bytes, bytearray, memoryview, array.array)
_HELD: Final = (np.ndarray, torch.Tensor, *_BYTES)
"""What memory is kept in."""
_LEFT_ALONE: Final = {
    "super",
    "isinstance",
    "issubclass",
    "len",
    "type",
    "getattr",
    "hasattr",
    "id",
    "callable",
}
"""Python's functions that take no memory, or look at who called them."""
_FREE_OF_MEMORY: Final = {
    *("numel", "dim", "size", "stride", "is_contiguous", "element_size", "get_device", "data_ptr"),
    *("storage_offset", "untyped_storage", "startswith", "endswith", "find", "fill"),
}
"""Methods that take none."""
_KERNELS: Final = "row_kernels"
"""Triton reads the source of these itself."""


@dataclass(frozen=True, slots=True)
class Failed(Generic[T]):
    """A call in which a point, counted from 1, failed: its subject, the place, the error or the result."""

    subject: T
    point: int
    where: str
    error: BaseException | None
    result: Any


class _Watch:
    """Counts points while a call is made, and lets one of them fail."""

    def __init__(self) -> None:
        self.is_on = False
        self.is_strict = False
        self.after = False
        self.error: type[BaseException] = MemoryError
        self.fails_at = 0
        self.count = 0
        self.where = ""
        self.named: set[int] = set()

    def pass_by(self, what: Callable[[], str], call: Callable[[], Any]) -> Any:
        """Do what is done at a point, unless that is the one to fail."""
        self.count += 1
        if self.count != self.fails_at:
            return call()
        frame = sys._getframe(2)
        while frame.f_code.co_filename == __file__ and frame.f_back is not None:
            frame = frame.f_back
        self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}: {what()}"
        if self.after:
            # Not watched: what the call does inside was tried at other points.
            self.is_on = False
            try:
                call()
            finally:
                self.is_on = True
        raise self.error(f"no memory at {self.where}")


_watch = _Watch()


# -- what the compiled code calls ----------------------------------------------------------------------------


def _takes_memory(f: Any, args: tuple[Any, ...]) -> bool:
    """Tell whether a call is a point."""
    owner = getattr(f, "__self__", None)
    if _watch.named and (id(f) in _watch.named or id(owner) in _watch.named):
        return True
    name = getattr(f, "__name__", "")
    if isinstance(owner, _HELD):
        return name not in _FREE_OF_MEMORY and not (
            name == "item" and isinstance(owner, np.ndarray) and not _watch.is_strict
        )
    if isinstance(owner, type | ModuleType):
        home = owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}."
    elif owner is not None:
        home = type(owner).__module__
    else:
        home = getattr(f, "__module__", None) or ""
    if home.partition(".")[0] in ("numpy", "torch"):
        return True
    if f in _BYTES:
        return True
    # A function of Python's own that reads an array makes something of it.
    return home == "builtins" and any(isinstance(it, _HELD) for it in args)


def _pym_call(f: Any, /, *args: Any, **options: Any) -> Any:
    if _watch.is_on and _takes_memory(f, args):
        return _watch.pass_by(lambda: _name_of(f), lambda: f(*args, **options))
    return f(*args, **options)


def _name_of(f: Any) -> str:
    owner = getattr(f, "__self__", None)
    of = "" if owner is None or isinstance(owner, type | ModuleType) else f"{type(owner).__name__}."
    return f"{of}{getattr(f, '__name__', f)}()"


_MEMBERSHIP: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "within": lambda it, of: it in of,
    "without": lambda it, of: it not in of,
}


def _pym_operate(name: str, left: Any, right: Any) -> Any:
    act = _MEMBERSHIP.get(name) or getattr(operator, name)
    if _watch.is_on and (isinstance(left, _HELD) or isinstance(right, _HELD)):
        is_bytes = isinstance(left, _BYTES) or isinstance(right, _BYTES)
        in_place = name.startswith("i") and isinstance(left, np.ndarray) and _is_like(left, right)
        if not (is_bytes and name in _COMPARING) and (_watch.is_strict or not in_place):
            return _watch.pass_by(lambda: name, lambda: act(left, right))
    return act(left, right)


def _pym_change(name: str, it: Any) -> Any:
    act = getattr(operator, name)
    if _watch.is_on and isinstance(it, _HELD):
        return _watch.pass_by(lambda: name, lambda: act(it))
    return act(it)


def _pym_each(it: Any) -> Any:
    if _watch.is_on and isinstance(it, _HELD):
        return _watch.pass_by(lambda: "iteration", lambda: iter(it))
    return it


def _pym_place(it: Any) -> Any:
    return _Places(it) if _watch.is_on and isinstance(it, _HELD) else it


class _Places:
    """Stands for an array, a tensor or bytes where one of their places is named."""

    def __init__(self, it: Any) -> None:
        self._it = it

    def __getitem__(self, index: Any) -> Any:
        if not _watch.is_strict and _is_at_hand(self._it, index):
            return self._it[index]
        return _watch.pass_by(lambda: "[...]", lambda: self._it[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        it = self._it
        if not _watch.is_strict and _is_written_in_place(it, index, value):
            it[index] = value
            return
        _watch.pass_by(lambda: "[...] =", lambda: operator.setitem(it, index, value))

    def __delitem__(self, index: Any) -> None:
        del self._it[index]


def _is_basic(index: Any) -> bool:
    """Tell whether NumPy makes a view, or an element, of what an index names."""
    return all(
        isinstance(it, int | np.integer | slice) for it in (index if isinstance(index, tuple) else (index,))
    )


def _is_at_hand(it: Any, index: Any) -> bool:
    """Tell whether what is read is no copy that grows."""
    if isinstance(it, np.ndarray | memoryview):
        return _is_basic(index)
    return isinstance(it, _BYTES) and isinstance(index, int | np.integer)


def _is_written_in_place(it: Any, index: Any, value: Any) -> bool:
    """Tell whether nothing is made of the index or of the value on the way."""
    if not isinstance(it, np.ndarray):
        return isinstance(it, _BYTES) and isinstance(index, int)
    if _is_basic(index):
        return isinstance(value, int | float | np.generic | np.ndarray)
    by_number = isinstance(index, np.ndarray) and index.dtype == np.int64 and index.ndim == 1
    return by_number and _is_like(it, value)


def _is_like(target: np.ndarray, value: Any) -> bool:
    """Tell whether a value has the form of an array's elements."""
    if isinstance(value, np.ndarray):
        return value.dtype == target.dtype
    return isinstance(value, int | float | np.generic)


_COMPARING: Final = {"eq", "ne", "lt", "le", "gt", "ge", "within", "without"}
_GIVEN: Final = {
    each.__name__: each for each in (_pym_call, _pym_operate, _pym_change, _pym_each, _pym_place)
}


# -- compiling -----------------------------------------------------------------------------------------------

_OPERATORS: Final = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.In: "within",
    ast.NotIn: "without",
    ast.USub: "neg",
    ast.Invert: "invert",
}


class _Handing(ast.NodeTransformer):
    """Hands each call, operator, index and loop to a function of this file, and keeps their order."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.target = self.visit(node.target)
        node.value = self.visit(node.value) if node.value is not None else None
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        returns, node.returns = node.returns, None
        self.generic_visit(node)
        node.returns = returns
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _LEFT_ALONE:
            return node
        return ast.copy_location(_calling(_pym_call, node.func, *node.args, keywords=node.keywords), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        name = ast.Constant(_OPERATORS[type(node.op)])
        return ast.copy_location(_calling(_pym_operate, name, node.left, node.right), node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        # No array stands in a chain, which asks for its truth.
        if len(node.ops) > 1 or type(node.ops[0]) not in _OPERATORS:
            return node
        name = ast.Constant(_OPERATORS[type(node.ops[0])])
        return ast.copy_location(_calling(_pym_operate, name, node.left, node.comparators[0]), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if type(node.op) not in _OPERATORS or isinstance(node.operand, ast.Constant):
            return node
        name = ast.Constant(_OPERATORS[type(node.op)])
        return ast.copy_location(_calling(_pym_change, name, node.operand), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        read = ast.parse(ast.unparse(node.target), mode="eval").body
        self.generic_visit(node)
        if isinstance(node.target, ast.Subscript):
            return node
        name = ast.Constant("i" + _OPERATORS[type(node.op)].rstrip("_"))
        value = _calling(_pym_operate, name, read, node.value)
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        node.value = ast.copy_location(_calling(_pym_place, node.value), node.value)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = ast.copy_location(_calling(_pym_each, node.iter), node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.iter = ast.copy_location(_calling(_pym_each, node.iter), node.iter)
        return node


def _calling(function: FunctionType, *args: ast.expr, keywords: Iterable[ast.keyword] = ()) -> ast.Call:
    return ast.Call(ast.Name(function.__name__, ast.Load()), list(args), list(keywords))


@cache
def _handed(module: ModuleType) -> dict[_Key, CodeType]:
    """Compile a module's functions again; two that nothing tells apart are left out."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    tree = ast.fix_missing_locations(_Handing().visit(tree))
    found: dict[_Key, CodeType] = {}
    twice: set[_Key] = set()
    ahead = [compile(tree, module.__file__, "exec", dont_inherit=True)]
    while ahead:
        for code in ahead.pop().co_consts:
            if isinstance(code, CodeType):
                ahead.append(code)
                key = _key_of(code)
                twice.update({key} & found.keys())
                found[key] = code
    return {key: code for key, code in found.items() if key not in twice}


_Key: TypeAlias = tuple[str, int, tuple[str, ...]]


def _key_of(code: CodeType) -> _Key:
    """Return the key of a function: its name, its line, and its variables of enclosing functions."""
    return code.co_qualname, code.co_firstlineno, code.co_freevars


def _functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions that were made of a module's text."""
    ahead = list(vars(module).values())
    seen: set[int] = set()
    while ahead:
        it = ahead.pop()
        if id(it) in seen:
            continue
        seen.add(id(it))
        if isinstance(it, dict | list | tuple):
            ahead += it.values() if isinstance(it, dict) else it
        if isinstance(it, FunctionType):
            if it.__code__.co_filename == module.__file__:
                yield it
            ahead += [cell.cell_contents for cell in it.__closure__ or () if _is_filled(cell)]
        if isinstance(it, type) and it.__module__ == module.__name__:
            ahead += vars(it).values()
        if isinstance(it, FunctionType | property | classmethod | staticmethod):
            ahead += [getattr(it, name, None) for name in ("__func__", "__wrapped__", "fget", "fset", "fdel")]


def _is_filled(cell: Any) -> bool:
    try:
        return isinstance(cell.cell_contents, FunctionType)
    except ValueError:
        return False


@contextmanager
def watched_places(*more: ModuleType) -> Iterator[Counter[str]]:
    """Let functions tell of each failing point; yields how many functions of each module do.

    Those of the modules of `ROOMS` and of ``more`` take part, as far as they are imported; a function that
    the text of its module does not have is a KeyError, for it would pass unseen. Leave it before another
    test runs: every place costs a call.
    """
    before: list[tuple[FunctionType, CodeType]] = []
    of_rooms = [it for name, it in sorted(sys.modules.items()) if name.startswith(ROOMS)]
    modules = [it for it in of_rooms if not it.__name__.endswith(_KERNELS)] + list(more)
    handed: Counter[str] = Counter()
    try:
        for module in modules:
            codes = _handed(module)
            for function in _functions_of(module):
                before.append((function, function.__code__))
                function.__code__ = codes[_key_of(function.__code__)]
                handed[module.__name__] += 1
            vars(module).update(_GIVEN)
        yield handed
    finally:
        for function, code in before:
            function.__code__ = code
        for module in modules:
            for name in _GIVEN:
                vars(module).pop(name, None)


# -- sweeping ------------------------------------------------------------------------------------------------


class Sweep(Generic[T]):
    """Makes a call again and again, and lets its first point fail, then its second, until none is left.

    ``named`` gives what else is a point when it is called: functions, and the methods of objects, such as
    pools and observers. A point fails instead of what it does, or ``after`` it; ``strict`` takes for one what
    NumPy does without memory that grows, too. ``points`` counts those that failed so far.
    """

    def __init__(
        self,
        make: Callable[[], T],
        act: Callable[[T], Any],
        *,
        named: Callable[[T], Iterable[Any]] = lambda subject: (),
        after: bool = False,
        strict: bool = False,
        error: type[BaseException] = MemoryError,
    ) -> None:
        self._make, self._act, self._named = make, act, named
        self._after, self._is_strict, self._error = after, strict, error
        self.points = 0

    def __iter__(self) -> Iterator[Failed[T]]:
        """Yield what each failure left, inside of `watched_places`."""
        while True:
            subject = self._make()
            failed = self._call(subject, self.points + 1)
            if not failed.where:
                if failed.error is not None:
                    raise failed.error
                return
            self.points += 1
            yield failed

    def _call(self, subject: T, fails_at: int) -> Failed[T]:
        named = list(self._named(subject))
        _watch.named = {id(it) for it in named}
        _watch.after, _watch.is_strict, _watch.error = self._after, self._is_strict, self._error
        _watch.fails_at, _watch.count, _watch.where = fails_at, 0, ""
        error: BaseException | None = None
        result = None
        _watch.is_on = True
        try:
            result = self._act(subject)
        except BaseException as raised:
            error = raised
        finally:
            _watch.is_on, _watch.named = False, set()
        return Failed(subject, fails_at, _watch.where, error, result)


def points_of(act: Callable[[], Any], *, strict: bool = False) -> int:
    """Count the points of one call that does not fail, inside of `watched_places`."""
    sweep = Sweep(lambda: None, lambda _: act(), strict=strict)
    failed = sweep._call(None, 0)
    if failed.error is not None:
        raise failed.error
    return _watch.count
