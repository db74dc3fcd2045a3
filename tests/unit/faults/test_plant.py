"""The machinery that plants: it changes exactly what it says, and everything is as before afterwards."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from pymllm.faults.plant import Edit, Replace, StaleEditError, planted
from pymllm.history.outcomes import Failed, Outcome
from pymllm.mem_cache import RadixKey, hash_bytes
from pymllm.mem_cache.chunk_cache import ChunkCache
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode
from pymllm.mem_cache.slots.host_store import HostSlotStore
from pymllm.oracle.models.kind_model import DONE, REFUSED, KindModel

KEYS = "pymllm.mem_cache.base_prefix_cache"
BIG = Edit(f"{KEYS}:hash_bytes", '"big"', '"little"')


def test_a_fault_reaches_every_importer_and_goes_with_its_block() -> None:
    """A name imported before runs the fault, and the old code after."""
    digest = hash_bytes(b"x").to_bytes(8, "big")
    with planted([BIG]):
        assert hash_bytes(b"x") == int.from_bytes(digest, "little")
    assert hash_bytes(b"x") == int.from_bytes(digest, "big")


def test_a_fault_goes_also_when_its_block_fails() -> None:
    """A noticing test raises, and the next one finds sound code."""
    sound = hash_bytes(b"x")
    with pytest.raises(ZeroDivisionError), planted([BIG]):
        _ = 1 / 0
    assert hash_bytes(b"x") == sound


def test_several_edits_of_one_function_add_up() -> None:
    """The second edit sees what the first one made."""
    with planted([BIG, Edit(BIG.target, "[:8]", "[:1]")]):
        assert hash_bytes(b"x") < 256


def test_properties_static_methods_and_classes_with_super_can_be_edited() -> None:
    """The function behind each is found, and super() in it still works."""
    edits = [
        Edit("pymllm.mem_cache.tree.node:BaseTreeNode.evicted", "_value is None", "_value is not None"),
        Edit("pymllm.oracle.models.kind_model:KindModel.refused", "REFUSED", "DONE"),
        Edit(
            "pymllm.mem_cache.slots.host_store:HostPages.__init__",
            "torch.arange(page_size",
            "torch.arange(page_size - 1",
        ),
    ]
    node = TreeNode()
    assert node.evicted
    refused = Outcome(Failed("TypeError"))
    assert KindModel.refused(refused).fate == REFUSED
    with planted(edits):
        assert not node.evicted
        store = HostSlotStore(8, 4, torch.device("cpu"), True, True)
        assert store._offsets.tolist() == [0, 1, 2]
        assert store.pages == 2
        assert KindModel.refused(refused).fate == DONE


def test_several_lines_are_found_and_written_with_their_indentation() -> None:
    """An edit says how its lines stand to each other, not how deep they are."""
    edit = Edit(
        "pymllm.mem_cache.tree.eviction:LeafPlan.take_leaves",
        "leaf = self._tree.victims.first_leaf()\nif leaf is None:\n    return",
        "leaf = self._tree.victims.first_leaf()\nif leaf is None or leaf:\n    return",
    )
    cache = RadixCache()
    cache.insert(RadixKey([1, 2]))
    with planted([edit]):
        assert cache.evict(2).full_evicted == 0
    assert cache.evict(2).full_evicted == 2


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(Edit(f"{KEYS}:hash_bytes", "no such text", ""), id="text is gone"),
        pytest.param(Edit(f"{KEYS}:hash_bytes", "data", ""), id="text is there twice"),
        pytest.param(Edit(f"{KEYS}:hash_nothing", "data", ""), id="function is gone"),
        pytest.param(
            Edit("pymllm.mem_cache.chunk_cache:ChunkCache.evictable_size", "0", "1"), id="inherited"
        ),
        pytest.param(Edit(f"{KEYS}:RadixKey", "extra_key", ""), id="a class"),
        pytest.param(Edit(f"{KEYS}:hash_bytes", "return", "return ("), id="no Python"),
    ],
)
def test_an_edit_that_no_longer_fits_is_an_error(edit: Edit) -> None:
    """A plant goes stale loudly, and none of its other edits is made."""
    sound = hash_bytes(b"x")
    with pytest.raises(StaleEditError), planted([BIG, edit]):
        pytest.fail("the block ran")
    assert hash_bytes(b"x") == sound


def test_a_traceback_shows_the_fault() -> None:
    """A traceback shows the edited line, and says that the line is a planted fault."""
    edit = Edit("pymllm.mem_cache.chunk_cache:ChunkCache.evict", "return EvictResult()", "return 1 // 0")
    with planted([edit]), pytest.raises(ZeroDivisionError) as caught:
        ChunkCache().evict(1)
    shown = "".join(traceback.format_tb(caught.value.__traceback__))
    assert "fault in pymllm.mem_cache.chunk_cache:ChunkCache.evict" in shown
    assert "return 1 // 0" in shown


LIMIT = 8


@dataclass
class Thing:
    """Something to be made wrong."""

    size: int = 3
    ROOM = 5

    def double(self, value: int, by: int = 2, *, plus: int = 0) -> int:
        """Return twice as much."""
        return value * by + plus

    @property
    def room(self) -> int:
        """Return what fits."""
        return self.ROOM

    @staticmethod
    def limit() -> int:
        """Return the limit."""
        return LIMIT

    @classmethod
    def make(cls) -> Thing:
        """Make one."""
        return cls()


def treble(self: Thing, value: int, by: int = 2, *, plus: int = 0) -> int:
    """Return thrice as much."""
    return value * 3


def no_room(self: Thing) -> int:
    """Return nothing."""
    return 0


def unlimited() -> int:
    """Return more."""
    return 99


def make_large(cls: type[Thing]) -> Thing:
    """Make a large one."""
    return cls(1000)


HERE = f"{__name__}:"
THING = f"{HERE}Thing"

REPLACEMENTS = [
    pytest.param(Replace(f"{HERE}LIMIT", 9, was=8), lambda: Thing.limit(), 8, 9, id="constant"),
    pytest.param(Replace(f"{THING}.ROOM", 0), lambda: Thing().room, 5, 0, id="attribute"),
    pytest.param(Replace(f"{THING}.__init__(size)", 4, was=3), lambda: Thing().size, 3, 4, id="field"),
    pytest.param(Replace(f"{THING}.double(by)", 5), lambda: Thing().double(1), 2, 5, id="default"),
    pytest.param(Replace(f"{THING}.double(plus)", 5), lambda: Thing().double(1), 2, 7, id="keyword"),
    pytest.param(Replace(f"{THING}.double", treble), lambda: Thing().double(1), 2, 3, id="method"),
    pytest.param(Replace(f"{THING}.room", no_room), lambda: Thing().room, 5, 0, id="property"),
    pytest.param(Replace(f"{THING}.limit", unlimited), lambda: Thing.limit(), 8, 99, id="static method"),
    pytest.param(Replace(f"{THING}.make", make_large), lambda: Thing.make().size, 3, 1000, id="class method"),
    pytest.param(
        Replace(f"{THING}.double", "def double(self, value, by=4, *, plus=1):\n    return value * by + plus"),
        lambda: Thing().double(1),
        2,
        5,
        id="text",
    ),
    pytest.param(
        Replace(f"{THING}.limit", "    def limit():\n        return sound() + 1"),
        lambda: Thing.limit(),
        8,
        9,
        id="indented text that calls the sound function",
    ),
    pytest.param(
        Replace(
            f"{THING}.double",
            "def double(self, value, **more):\n    return -sound(self, value, **more)",
        ),
        lambda: Thing().double(1, plus=1),
        3,
        -3,
        id="options handed on",
    ),
]


@pytest.mark.parametrize(("replacement", "look", "sound", "wrong"), REPLACEMENTS)
def test_something_else_stands_there_until_the_block_ends_or_fails(
    replacement: Replace, look: Callable[[], int], sound: int, wrong: int
) -> None:
    """A replacement of any kind stands until its block ends or fails, in another process as well."""
    assert look() == sound
    with planted([pickle.loads(pickle.dumps(replacement))]):
        assert look() == wrong
    assert look() == sound
    with pytest.raises(ZeroDivisionError), planted([replacement]):
        _ = 1 / 0
    assert look() == sound
    assert __name__ in replacement.modules


def test_edits_and_replacements_of_different_things_add_up() -> None:
    """A fault may need both."""
    edit = Edit(f"{THING}.room", "self.ROOM", "self.ROOM + 1")
    with planted([edit, Replace(f"{THING}.ROOM", 0)]):
        assert Thing().room == 1
    assert Thing().room == 5


@pytest.mark.parametrize(
    ("replacement", "words"),
    [
        (Replace(f"{HERE}NOTHING", 1), "has no NOTHING of its own"),
        (Replace("no_such_module_here:X", 1), "No module named"),
        (Replace(f"{HERE}LIMIT", 8), "LIMIT is 8 already; the fault would change nothing"),
        (Replace(f"{HERE}LIMIT", 9, was=7), "LIMIT is 8, not 7"),
        (Replace(f"{HERE}LIMIT", 9, was=8.0), "LIMIT is 8, not 8.0"),
        (Replace(f"{THING}.double", 7), "is a function, and 7 is none"),
        (
            Replace(f"{THING}.double", no_room),
            r"takes \(self, value, by, plus\), and its replacement \(self\)",
        ),
        (Replace(f"{THING}.double", Thing.double), "is replaced by itself"),
        (Replace(f"{THING}.double", "def twice(self): pass"), "must define double, and nothing else"),
        (Replace(f"{THING}.double", "x = 1\ny = 2"), "is no Python function any more"),
        (Replace(f"{THING}.double", "def double(:"), "is no Python function any more"),
        (
            Replace(f"{THING}.double", "def double(self, value, by=2, *, plus=0):\n    return super()"),
            "takes __class__ from around it otherwise",
        ),
        (Replace(f"{THING}.double(value)", 7), "has no parameter value with a default value"),
        (Replace(f"{THING}.double(by)", 2), "is 2 already"),
        (Replace(f"{THING}.ROOM(by)", 2), "is a int, not a function"),
    ],
)
def test_a_replacement_that_no_longer_fits_is_an_error(replacement: Replace, words: str) -> None:
    """It goes stale loudly, and nothing else is planted."""
    sound = hash_bytes(b"x")
    with pytest.raises(StaleEditError, match=words), planted([BIG, replacement]):
        pytest.fail("the block ran")
    assert hash_bytes(b"x") == sound


def test_what_is_replaced_is_replaced_once() -> None:
    """Of two, one would say nothing."""
    twice = [Replace(f"{HERE}LIMIT", 9), Replace(f"{HERE}LIMIT", 10)]
    with pytest.raises(StaleEditError, match="replaced, and changed 2 times"), planted(twice):
        pytest.fail("the block ran")


def test_a_function_that_is_gone_is_said_so() -> None:
    """Its name is all that a fault keeps of it."""
    replacement = pickle.loads(
        pickle.dumps(Replace(f"{THING}.room", no_room)).replace(b"no_room", b"no_rook")
    )
    with pytest.raises(StaleEditError, match="its replacement cannot be found"), planted([replacement]):
        pytest.fail("the block ran")


def test_a_function_without_a_name_is_refused() -> None:
    """X1: no other process would find it."""
    with pytest.raises(ValueError, match="has no name in a module; give a function of a module, or its text"):
        Replace(f"{THING}.room", lambda self: 0)


def test_values_that_cannot_be_compared_are_different() -> None:
    """Such as tensors: another one is another one."""
    with (
        planted([Replace(f"{THING}.ROOM", torch.zeros(2))]),
        planted([Replace(f"{THING}.ROOM", torch.ones(2))]),
    ):
        assert Thing().room.tolist() == [1, 1]
