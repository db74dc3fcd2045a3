"""The documented interface of the caches is there, name by name, and only grows at its ends."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from pymllm import mem_cache
from pymllm.core.inference import contexts

DOCUMENTED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "documented_interface.json").read_text(encoding="utf-8")
)
CLASSES = [(module, name) for module, parts in DOCUMENTED.items() for name in parts["classes"]]
FUNCTIONS = [
    (module, name, signature)
    for module, parts in DOCUMENTED.items()
    for name, signature in parts.get("functions", {}).items()
]
CONSTRUCTORS = [
    (module, name, DOCUMENTED[module]["classes"][name]["signature"])
    for module, name in CLASSES
    if "signature" in DOCUMENTED[module]["classes"][name]
]
METHODS = [
    (module, class_name, name, signature)
    for module, class_name in CLASSES
    for name, signature in DOCUMENTED[module]["classes"][class_name].get("methods", {}).items()
]

# An object of each class whose attributes are documented, made in the smallest way.
EXAMPLES: dict[str, Callable[[], Any]] = {
    "RadixKey": lambda: mem_cache.RadixKey([1, 2]),
    "MatchResult": lambda: mem_cache.MatchResult(torch.empty(0, dtype=torch.int64)),
    "InsertResult": lambda: mem_cache.InsertResult(),
    "EvictResult": lambda: mem_cache.EvictResult(),
    "TreeNode": lambda: mem_cache.TreeNode(),
    "RadixCache": lambda: mem_cache.RadixCache(),
    "MambaTreeNode": lambda: mem_cache.MambaTreeNode(),
    "LRUList": lambda: mem_cache.LRUList(),
    "MambaRadixCache": lambda: mem_cache.MambaRadixCache(),
    "KVPool": lambda: mem_cache.KVPool(4, layer_num=1, k_head_num=1, k_head_dim=2, device="cpu"),
    "TokenToKVPoolAllocator": lambda: mem_cache.TokenToKVPoolAllocator(4, device="cpu"),
    "ReqToTokenPool": lambda: mem_cache.ReqToTokenPool(2, 4, device="cpu"),
    "GDNPool": lambda: mem_cache.GDNPool(2, 1, 1, 2, 2, 4, 3, device="cpu"),
    "KVBlockAllocator": lambda: make_context().kv_block_allocator,
    "MambaSlotAllocator": lambda: make_context().mamba_slot_allocator,
    "DynamicInferenceContext": lambda: make_context(),
}


def make_context() -> contexts.DynamicInferenceContext:
    return contexts.DynamicInferenceContext(
        max_requests=2,
        num_blocks=4,
        max_blocks_per_request=2,
        block_size_tokens=4,
        mamba_slots=2,
        num_mamba_layers=1,
    )


def documented(module: str, class_name: str) -> dict[str, Any]:
    return DOCUMENTED[module]["classes"][class_name]


def assert_only_grows(actual: inspect.Signature, signature: str) -> None:
    """Assert that ``actual`` begins as documented, and that all added parameters may be left out."""
    function = ast.parse(f"def documented{signature}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    missing = [None] * (len(arguments.args) - len(arguments.defaults))
    positional = list(zip(arguments.args, [*missing, *arguments.defaults], strict=True))
    keyword_only = list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))

    parameters = list(actual.parameters.values())
    of_kind = {kind: [p for p in parameters if p.kind is kind] for kind in inspect._ParameterKind}
    in_order = of_kind[inspect.Parameter.POSITIONAL_ONLY] + of_kind[inspect.Parameter.POSITIONAL_OR_KEYWORD]
    by_keyword = {p.name: p for p in of_kind[inspect.Parameter.KEYWORD_ONLY]}

    expected = [(arg.arg, default and ast.unparse(default)) for arg, default in positional]
    assert [(p.name, shown_default(p)) for p in in_order[: len(expected)]] == expected
    for arg, default in keyword_only:
        assert shown_default(by_keyword.pop(arg.arg)) == (default and ast.unparse(default))
    for added in [*in_order[len(expected) :], *by_keyword.values()]:
        assert added.default is not inspect.Parameter.empty, f"{added.name} was added and has no default"
    if arguments.kwarg is not None:
        assert of_kind[inspect.Parameter.VAR_KEYWORD], "documented to take further keywords"


def shown_default(parameter: inspect.Parameter) -> str | None:
    return None if parameter.default is inspect.Parameter.empty else repr(parameter.default)


@pytest.mark.parametrize(("module", "name"), [*CLASSES, *[(m, n) for m, n, _ in FUNCTIONS]])
def test_documented_names_import_from_both_places(module: str, name: str) -> None:
    """Callers of the reference find each name in its own module and in the package."""
    package = import_module(module.rpartition(".")[0])
    assert getattr(import_module(module), name) is getattr(package, name)
    assert name in package.__all__


@pytest.mark.parametrize("module", [module for module, parts in DOCUMENTED.items() if "data" in parts])
def test_documented_loggers_carry_their_modules_name(module: str) -> None:
    """A server that configures logging by module reaches the documented loggers."""
    assert import_module(module).logger.name == module


@pytest.mark.parametrize("module", [module for module, parts in DOCUMENTED.items() if "constants" in parts])
def test_documented_constants_have_their_values(module: str) -> None:
    """A caller that sizes a buffer by a documented number gets that number."""
    for name, value in DOCUMENTED[module]["constants"].items():
        assert repr(getattr(import_module(module), name)) == value


@pytest.mark.parametrize(("module", "name", "signature"), FUNCTIONS)
def test_documented_functions_keep_their_parameters(module: str, name: str, signature: str) -> None:
    """Names, order and defaults of a function's parameters are as documented."""
    assert_only_grows(inspect.signature(getattr(import_module(module), name)), signature)


@pytest.mark.parametrize(("module", "class_name", "signature"), CONSTRUCTORS)
def test_documented_constructors_keep_their_parameters(module: str, class_name: str, signature: str) -> None:
    """Names, order and defaults of a constructor's parameters are as documented."""
    assert_only_grows(inspect.signature(getattr(import_module(module), class_name)), signature)


@pytest.mark.parametrize(("module", "class_name", "name", "signature"), METHODS)
def test_documented_methods_keep_their_parameters(
    module: str, class_name: str, name: str, signature: str
) -> None:
    """Names, order and defaults of a method's parameters are as documented."""
    method = inspect.signature(getattr(getattr(import_module(module), class_name), name))
    without_self = method.replace(parameters=list(method.parameters.values())[1:])
    assert_only_grows(without_self, signature)


@pytest.mark.parametrize("class_name", ["MatchResult", "InsertResult", "EvictResult"])
def test_results_take_their_documented_fields_in_order(class_name: str) -> None:
    """A result can be built from its documented fields by position."""
    fields = documented("pymllm.mem_cache.base_prefix_cache", class_name)["attributes"]
    parameters = list(inspect.signature(getattr(mem_cache, class_name)).parameters)
    assert parameters[: len(fields)] == list(fields)


@pytest.mark.parametrize("class_name", EXAMPLES)
def test_documented_attributes_exist_with_their_defaults(class_name: str) -> None:
    """Every documented attribute is on a new object, with the documented value where there is one."""
    (module,) = [module for module, name in CLASSES if name == class_name]
    example = EXAMPLES[class_name]()
    for name, default in documented(module, class_name)["attributes"].items():
        assert hasattr(example, name)
        assert default is None or repr(getattr(example, name)) == default


def test_every_class_with_documented_attributes_has_an_example() -> None:
    """The test above leaves no class out."""
    assert {name for module, name in CLASSES if "attributes" in documented(module, name)} == set(EXAMPLES)


@pytest.mark.parametrize(("module", "class_name"), CLASSES)
def test_documented_properties_are_read_without_a_call(module: str, class_name: str) -> None:
    """A documented property is a property and not a method."""
    cls = getattr(import_module(module), class_name)
    for name in documented(module, class_name).get("properties", []):
        assert isinstance(inspect.getattr_static(cls, name), property)


def test_base_prefix_cache_leaves_the_documented_methods_abstract() -> None:
    """A cache of one's own must define exactly the documented abstract methods."""
    abstract = documented("pymllm.mem_cache.base_prefix_cache", "BasePrefixCache")["abstract_methods"]
    assert mem_cache.BasePrefixCache.__abstractmethods__ == set(abstract)


@pytest.mark.parametrize("name", ["RadixCache", "MambaRadixCache", "ChunkCache"])
def test_caches_keep_the_documented_base(name: str) -> None:
    """A caller may ask isinstance(cache, BasePrefixCache)."""
    assert issubclass(getattr(mem_cache, name), mem_cache.BasePrefixCache)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda key, page_size=1: None, id="a parameter in front"),
        pytest.param(lambda page_size=2: None, id="another default"),
        pytest.param(lambda renamed=1: None, id="another name"),
        pytest.param(lambda page_size=1, *, extra: None, id="an addition that must be given"),
    ],
)
def test_a_changed_signature_is_noticed(changed: Callable[..., None]) -> None:
    """The comparison that these tests rest on fails for each kind of change."""
    with pytest.raises(AssertionError):
        assert_only_grows(inspect.signature(changed), "(page_size=1)")
