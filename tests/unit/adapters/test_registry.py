"""The registry of adapters: names, places, and errors that help."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pymllm.adapters.base import CAPABILITIES
from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.registry import OWN, adapters, find_adapter, load_adapter, make_adapter, plugin_problems
from pymllm.errors import AdapterError, UsageError
from pymllm.faults.adapters import FAULTY
from pymllm.history.files import Config

STRANGER = """
from pymllm.adapters.base import BaseAdapter

class Cache(BaseAdapter):
    KIND = "slots"
    CONFIGURATIONS = ({"pages": 4}, {"pages": 8})

    def __init__(self, name, config):
        super().__init__(name, config)
        if config["pages"] < 1:
            raise RuntimeError("no pages")

class Thirsty(Cache):
    def __init__(self, name, config):
        super().__init__(name, config)
        self.number("page_sise")

class Hasty(Cache):
    def __init__(self, name, config):
        self.config = config

class Teapot(BaseAdapter):
    KIND = "kettle"

class Pot:
    pass
"""
BROKEN = {
    "needy": "\nimport nowhere_to_be_found",
    "unfinished": "x = 1\nclass Cache(\n",
    "divided": "1 / 0",
}


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of somebody else's, by name."""
    (tmp_path / "stranger.py").write_text(STRANGER, encoding="utf-8")
    for name, text in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    return "stranger"


@pytest.mark.parametrize("entry", [*OWN, *FAULTY], ids=lambda entry: entry.name)
def test_every_entry_can_be_built_in_every_configuration(entry: AdapterEntry) -> None:
    """The registry promises nothing that is not there."""
    for config in load_adapter(entry).CONFIGURATIONS:
        adapter = make_adapter(entry.name, dict(config))
        assert adapter.name == entry.name
        assert adapter.capabilities <= set(CAPABILITIES)
        adapter.close()


def test_names_are_unique() -> None:
    """A name means one thing."""
    names = [entry.name for entry in adapters()]
    assert {entry.name for entry in (*OWN, *FAULTY)} <= set(names)
    assert len(set(names)) == len(names)


def test_an_unknown_name_is_refused_with_the_nearest_ones() -> None:
    """X1: the error says what lists all, and how to name one's own."""
    with pytest.raises(UsageError) as caught:
        find_adapter("raddix")
    assert str(caught.value).startswith("no adapter 'raddix' (did you mean radix")
    assert str(caught.value).endswith(
        "?); pymllm adapters lists all; name your own as module:Class or command:PROGRAM ARGS"
    )
    with pytest.raises(UsageError, match=r"^no adapter 'x{60}\.\.\.'; pymllm adapters lists all"):
        find_adapter("x" * 5000)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("toy.Toy", "toy:Toy"),
        ("my.toys.Toy", "my.toys:Toy"),
        ("toy.py", "toy:CLASS"),
        ("toy.py:Toy", "toy:Toy"),
        ("./toys/toy.py:Toy", "toys.toy:Toy"),
    ],
)
def test_other_spellings_of_a_class_get_the_right_one(name: str, meant: str) -> None:
    """People name a class as Python does, or its file."""
    with pytest.raises(
        UsageError, match=rf"^no adapter '{name}' \(did you mean {meant}\?\); pymllm adapters"
    ):
        find_adapter(name)


@pytest.mark.parametrize("name", ["/abs/toy.py:Toy", "../toys/toy.py:Toy"])
def test_a_path_from_elsewhere_is_given_no_module(name: str) -> None:
    """Nobody can say which module that would be."""
    with pytest.raises(UsageError, match=r"^no adapter '[^']*'; pymllm adapters"):
        find_adapter(name)


def test_a_package_that_is_missing_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where it is: nothing of it is imported to see."""
    needs = AdapterEntry("theirs", "their:Cache", "their cache", "their_cache", install="pip install theirs")
    assert replace(needs, package="nowhere.at.all").find_missing() is not None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_adapter("radix").find_missing() is None
    assert needs.find_missing() == "theirs needs their_cache, which is not installed; pip install theirs"
    assert (needs.released_as, replace(needs, distribution="their-cache").released_as) == (
        "their_cache",
        "their-cache",
    )
    assert replace(needs, install="").find_missing() == "theirs needs their_cache, which is not installed"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert needs.find_missing() is None
    tool = AdapterEntry("theirs", "their:Cache", "their cache", tool="no-such-tool", tool_from="apt has it")
    assert tool.find_missing() == "theirs needs no-such-tool, which is not on the PATH; apt has it"


ENTRY = "AdapterEntry('their-rows', 'tiny_adapters:TinyRows', 'their rows')"
BRINGS = f"from pymllm.adapters.entry import AdapterEntry\nADAPTERS = [{ENTRY}]"


def test_a_package_brings_its_adapters(plug_in: Callable[[str, str], None], tiny: str) -> None:
    """Found by name, listed behind ours and before the faulty ones, and built."""
    plug_in("their_rows", BRINGS)
    names = [entry.name for entry in adapters()]
    assert names.index(OWN[-1].name) < names.index("their-rows") < names.index(FAULTY[0].name)
    assert plugin_problems() == ()
    config = {"max_reqs": 2, "max_context_len": 3}
    assert type(make_adapter("their-rows", config)).__module__ == tiny
    with pytest.raises(UsageError, match=r"no adapter 'their-row' \(did you mean their-rows"):
        find_adapter("their-row")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            "import nowhere",
            "cannot be imported: ModuleNotFoundError: No module named 'nowhere'",
        ),
        ("ADAPTERS = 3", "must name a sequence of AdapterEntry of pymllm.adapters.entry, and has 3"),
        ("ADAPTERS = 'ab'", "must name a sequence of AdapterEntry of pymllm.adapters.entry, and has 'ab'"),
        (BRINGS.replace("'their-rows'", "3"), "a name has no colon, and a place is module:Class"),
        (
            "ADAPTERS = (1 // it for it in [0])",
            "cannot be imported: ZeroDivisionError: integer division or modulo by zero",
        ),
        (BRINGS.replace("their-rows", "a:b"), "a name has no colon, and a place is module:Class"),
        (BRINGS.replace("their-rows", "radix"), ": the name radix is taken; its adapter is not listed"),
    ],
)
def test_a_package_that_brings_nonsense_is_a_line(
    plug_in: Callable[[str, str], None], source: str, why: str
) -> None:
    """And no trouble for anybody else: ours are found, and an unknown name is told with the line."""
    plug_in("broken_plugin", source)
    (problem,) = plugin_problems()
    assert problem.startswith("plug-in broken_plugin (broken_plugin:ADAPTERS)")
    assert problem.endswith(why)
    assert find_adapter("radix") is find_adapter("radix")
    assert find_adapter(FAULTY[0].name) == FAULTY[0]
    with pytest.raises(UsageError, match=f"no adapter 'nobodys'.*{re.escape(problem)}$"):
        find_adapter("nobodys")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"pool": "token"},
            "cannot be built with {'pool': 'token'}: there is no 'page_size' in it; one of its own is {'",
        ),
        (
            {"page_size": 4, "pool": "token", "pol": "none", "slot": 1},
            "there is no 'slots' in it, and no configuration of its own has 'pol', 'slot'; one of its own is",
        ),
        ({"page_size": "x" * 999, "pool": "token"}, "...: "),
    ],
)
def test_a_configuration_that_does_not_fit_is_said_in_words(config: Config, words: str) -> None:
    """A refusal names the missing keys, the unknown keys, and a configuration that fits."""
    with pytest.raises(AdapterError) as caught:
        make_adapter("radix", config)
    assert words in caught.value.message
    assert "KeyError" not in caught.value.message
    assert len(caught.value.message) < 1000


def test_a_stranger_is_named_by_module_and_class(stranger: str) -> None:
    """The first configuration is the default, any other may be given."""
    assert make_adapter("stranger:Cache").config == {"pages": 4}
    assert make_adapter("stranger:Cache", {"pages": 9}).config == {"pages": 9}


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("nowhere:Cache", "cannot import nowhere: no module of that name is in "),
        ("./sub/nowhere:Cache", " or installed (did you mean sub.nowhere:Cache?)"),
        (
            "needy:Cache",
            "import needy: ModuleNotFoundError: No module named 'nowhere_to_be_found' (needy.py, line 2)",
        ),
        ("unfinished:Cache", "SyntaxError: '(' was never closed (unfinished.py, line 2)"),
        ("divided:Cache", "ZeroDivisionError: division by zero (divided.py, line 1)"),
        ("stranger:Cash", "stranger has no class 'Cash' (did you mean Cache?)"),
        ("stranger:Pot", "Pot is no adapter; derive one from pymllm.adapters.base.BaseAdapter"),
        ("stranger:Teapot", "Teapot.KIND is 'kettle'; it must be one of slots, rows"),
    ],
)
def test_what_cannot_be_loaded_is_the_adapters_fault(stranger: str, place: str, says: str) -> None:
    """An adapter error in one line, so that no law is said to be violated."""
    with pytest.raises(AdapterError) as caught:
        load_adapter(find_adapter(place))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_built_is_the_adapters_fault(stranger: str) -> None:
    """The configuration is named, and the line that raised."""
    with pytest.raises(AdapterError) as caught:
        make_adapter("stranger:Cache", {"pages": 0})
    assert caught.value.message == (
        "cannot be built with {'pages': 0}: RuntimeError: no pages (stranger.py, line 11)"
    )
    with pytest.raises(AdapterError, match=r"its __init__ must call super\(\).__init__\(name, config\)"):
        make_adapter("stranger:Hasty")


def test_a_key_that_no_configuration_has_is_said_with_who_asks_for_it(stranger: str) -> None:
    """The adapter, the configuration, the key and the way out."""
    with pytest.raises(AdapterError) as caught:
        make_adapter("stranger:Thirsty", {"pages": 4, "page_size": 1})
    assert str(caught.value) == (
        "adapter stranger:Thirsty: cannot be built with {'pages': 4, 'page_size': 1}: stranger.py, line 16 "
        "asks for 'page_sise', which is not in it (did you mean 'page_size'?); add it to "
        "Thirsty.CONFIGURATIONS"
    )


def test_a_program_is_named_by_its_command(tiny_program: Callable[..., str]) -> None:
    """A command is a name wherever an adapter is, and its program is started to tell its kind."""
    name = f"command:{tiny_program()}"
    entry = find_adapter(name)
    assert (entry.name, entry.place) == (name, name)
    assert (load_adapter(entry).KIND, load_adapter(entry).CONFIGURATIONS) == ("hashes", ({},))
    adapter = make_adapter(name)
    assert (adapter.name, adapter.kind, adapter.config) == (name, "hashes", {})
    adapter.close()
