"""Coverage goals of prefix caches: those that any caller can reach, and those that only an engine can."""

from __future__ import annotations

from functools import partial

from pymllm.history.files import Config
from pymllm.oracle.laws.goal import Condition, CoverageGoal, Row, make_goals

_prefix = partial(make_goals, "prefix")


def _has_edges(config: Config) -> bool:
    window, page_size = config.get("window"), config.get("page_size", 1)
    return isinstance(window, int) and isinstance(page_size, int) and window > page_size


def _is_ragged(config: Config) -> bool:
    window, page_size = config.get("window"), config.get("page_size", 1)
    return isinstance(window, int) and isinstance(page_size, int) and window % page_size != 0


def _has_several_tracks(config: Config) -> bool:
    tracks = config.get("track_slots")
    return isinstance(tracks, int) and tracks > 1


def _has_three_pages(config: Config) -> bool:
    size = config.get("page_size", 1)
    rooms = (config.get("slots"), config.get("capacity"))
    return all(not isinstance(it, int) or not isinstance(size, int) or it >= 3 * size for it in rooms)


_THREE = Condition("room for three pages", _has_three_pages)
_RETAINS = Condition("a cache that keeps something", lambda config: config.get("retains") is not False)
_SPLITS = Condition("nodes of several pages", lambda config: config.get("splits") is not False)
_OTHER = Condition("another policy than lru", lambda config: config.get("policy", "lru") != "lru")
_OWN = Condition("memory of its own", lambda config: config.get("capacity") is not None)
_POOL = Condition("a pool", lambda config: config.get("pool", "none") != "none")
_PAGED = Condition("pages of several tokens", lambda config: config.get("page_size", 1) != 1)
_WINDOW = Condition("a window", lambda config: config.get("window") is not None)
_WHOLE = Condition("a window of one page", lambda config: not _has_edges(config))
_RAGGED = Condition("a window of no whole pages", _is_ragged)
_EDGES = Condition("a window of several pages", _has_edges)
_HALVES = Condition("a pool with SWA halves", lambda config: config.get("pool") == "swa")
_TRACKS = Condition("several track slots", _has_several_tracks)
_STATELESS = Condition("no states", lambda config: config.get("track_slots") is None)
_SECONDARY = Condition(
    "a window or states", lambda config: _WINDOW.holds(config) or not _STATELESS.holds(config)
)

_ANY = (
    *_prefix(
        ("a match goes by a page that has two siblings", "R2 R3"),
        ("an eviction takes one of three siblings", "R5 A2"),
        when=(_RETAINS, _THREE),
    ),
    *_prefix(("a match finds token 0 behind others", "R2"), when=(_RETAINS,)),
    *_prefix(("a key of an empty namespace is matched", "K1"), needs="extra_key", when=(_RETAINS,)),
    *_prefix(
        ("an empty key is inserted", "R3"),
        ("an insert finds the whole key cached", "R3 R4", "B10 B101"),
        ("an insert passes the matched prefix back", "R4", "B10"),
        ("a leaf gains a child", "R5 R7", "B16"),
        ("a held leaf gains a child", "R6 R7", "B16"),
        ("one of two holds at a node is released", "R6", "B14 B20"),
        ("everything is locked and an eviction is asked for", "R5 R6"),
        ("an eviction asks for nothing", "R5"),
        ("an eviction empties the cache", "R5 R7", "B16"),
        ("a held page is older than what is evicted", "R6 R8", "B13"),
        ("a leaf goes and its held parent stays", "R6", "B02"),
        ("an eviction takes a parent after its last child", "R5", "B65"),
        ("an eviction takes more than was asked for", "R5", "B52"),
        ("an eviction spares what is held", "R6", "B01 B02 B13"),
        ("a reset with holds outstanding", "X7"),
        when=(_RETAINS,),
    ),
    *_prefix(
        ("a stale node is used", "X1"),
        ("a stale node is used whose key is cached again", "X1 X3"),
        needs="refuses_stale",
        when=(_RETAINS,),
    ),
    *_prefix(("a bad insert is refused", "R1 S7 X1"), needs="refuses_bad_arguments", when=(_RETAINS,)),
    *_prefix(
        ("a malformed call is refused", "X1"),
        ("a node of another cache is used", "X1"),
        needs="refuses_malformed",
        when=(_RETAINS,),
    ),
    *_prefix(
        ("a hold is released twice", "R6 X1", "B26"),
        ("a hold is released at an ancestor", "R6 X1", "B13"),
        needs="refuses_unheld",
        when=(_RETAINS,),
    ),
    *_prefix(
        ("an unaligned tail stays the caller's", "R1 R4", "B04"),
        ("a key shorter than a page is inserted", "R1 R3", "B04"),
        ("a key leaves a cached page in its middle", "R1 R2", "B04 B97"),
        when=(_RETAINS, _PAGED),
    ),
    *_prefix(
        ("pages of a namespace are hashed", "H3", "B145"),
        needs="hashes extra_key",
        when=(_RETAINS,),
    ),
    *_prefix(
        ("equal tokens are cached in another space only", "K1", "B139 B140 B142"),
        needs="extra_key",
        when=(_RETAINS,),
    ),
    *_prefix(
        ("a key is found under its several values", "K2"),
        ("equal tokens are cached under one other value only", "K2"),
        needs="lora",
        when=(_RETAINS,),
    ),
    *_prefix(
        ("equal tokens are cached under exchanged values only", "K2"),
        ("equal tokens are cached under values only that spell the same", "K2"),
        ("equal tokens are cached under an empty value only, or a missing one", "K2"),
        needs="extra_key lora",
        when=(_RETAINS,),
    ),
    *_prefix(
        ("an insert evicts", "R3 R11"),
        ("an insert evicts and keeps what it has found", "R3 R6"),
        ("an insert finds no room", "R3"),
        when=(_RETAINS, _OWN),
    ),
    *_prefix(("an insert brings duplicates", "R3 R4", "B101 B163"), when=(_RETAINS, _POOL)),
    *_prefix(
        ("rejected drafts of several pages go back", "R4 A2"),
        needs="pool",
        when=(_RETAINS, _POOL, _THREE),
    ),
    *_prefix(("memory runs out", "X4"), needs="pool"),
    *_prefix(
        ("a held path is split", "R6 R10", "B22 B160"),
        ("a hold is released after its path was split", "R6 R10 S5", "B17 B22 B23 B25"),
        ("an insert leaves a node in its middle", "R9 R10", "B05 B49 B50"),
        needs="inspect",
        when=(_RETAINS, _SPLITS),
    ),
    *_prefix(
        ("an eviction climbs through three nodes", "R5", "B65"),
        needs="inspect",
        when=(_RETAINS,),
    ),
    *_prefix(
        ("a match ends inside a node", "R2 R10", "B02 B49 B50"),
        needs="inspect",
        when=(_RETAINS, _STATELESS, _SPLITS),
    ),
    *_prefix(
        ("a hashed node is split", "H2", "B146"),
        needs="inspect hashes",
        when=(_RETAINS, _SPLITS),
    ),
    *_prefix(
        ("a callback raises", "X2", "B124"),
        ("a callback raises and others follow", "X2", "B124"),
        ("a callback re-enters", "X6", "B124"),
        needs="callbacks faults",
        when=(_RETAINS,),
    ),
    *_prefix(
        ("the pool refuses an eviction", "X2"),
        ("the pool refuses a reset", "X2 X7"),
        needs="faults",
        when=(_RETAINS, _POOL),
    ),
)

_OF_WINDOWS = (
    *_prefix(
        ("a match ends before a dead window", "S1", "B31 B41"),
        ("a match passes a tombstone", "S1", "B31"),
        ("a match has its window alive and no page more", "S1", "B31 B47"),
        ("a dead window leaves no match", "S1", "B31 B47"),
        ("an insert adopts two ranges", "R4 S7", "B37"),
        ("new pages are born dead", "S2 S7", "B38"),
        ("a window is tombstoned", "S2 S3", "B40 B62"),
        ("a locked page is tombstoned", "S3 S6", "B40"),
        ("a window goes before that of a page used together with it", "S3 R8", "B53"),
        ("every window is held and an eviction of windows is asked for", "S3 S6", "B40"),
        ("a reset with tombstones", "X7 S2", "B92"),
        ("two holds share an edge", "S5", "B17"),
        ("a hold's window covers the whole path", "S5", "B19"),
        when=(_RETAINS, _WINDOW),
    ),
    *_prefix(
        ("an unlocked tombstone is revived", "S7", "B34"),
        ("a stretch of tombstones is revived in part", "S7", "B34"),
        ("a tombstone before prev_prefix_len stays dead", "S7", "B35"),
        ("a tombstone before swa_evicted_seqlen stays dead", "S7", "B37 B38"),
        ("an insert is refused whole", "S7", "B32"),
        ("a tombstone goes with its last child", "S4", "B44 B46"),
        ("a dead page gets its own slots back", "S7"),
        ("a held tombstone stays dead", "S7", "B35"),
        needs="exact_windows",
        when=(_RETAINS, _WINDOW),
    ),
    *_prefix(
        ("phase 2 removes a leaf", "S3 M5", "B43"),
        ("phase 1 frees enough for phase 2", "S3 M5", "B46"),
        ("phase 2 takes what phase 1 has left", "S3 M5", "B46"),
        when=(_RETAINS, _SECONDARY),
    ),
    *_prefix(
        ("a cascade goes through three levels", "S4 M5", "B44"),
        needs="inspect exact_lru",
        when=(_RETAINS, _SECONDARY),
    ),
    *_prefix(
        ("an insert is refused whole and what was cached is the caller's", "S7 R4"),
        needs="exact_windows",
        when=(_RETAINS, _WINDOW, _POOL),
    ),
    *_prefix(
        ("an insert is refused whole that would have revived a tombstone", "S7"),
        needs="exact_windows",
        when=(_RETAINS, _EDGES),
    ),
    *_prefix(("a held window is the last page alone", "S5", "B32"), when=(_RETAINS, _WINDOW, _WHOLE)),
    *_prefix(("a held window begins inside a page", "S5", "B32"), when=(_RETAINS, _RAGGED)),
    *_prefix(
        ("two held windows overlap in part", "S5 S6", "B17 B20 B25"),
        when=(_RETAINS, _EDGES),
    ),
    *_prefix(
        ("a hold is refused on a dead window", "S5"),
        needs="exact_windows refuses_bad_arguments",
        when=(_RETAINS, _WINDOW),
    ),
    *_prefix(
        ("a wrong token is refused", "S5", "B17 B25"),
        needs="hold_tokens refuses_unheld",
        when=(_RETAINS, _WINDOW),
    ),
    *_prefix(
        ("a hold splits at the edge of its window", "S5 R10", "B23"),
        needs="inspect",
        when=(_RETAINS, _WINDOW, _SPLITS),
    ),
    *_prefix(
        ("an edge node is split", "S5 R10", "B23 B25"),
        needs="inspect",
        when=(_RETAINS, _EDGES, _SPLITS),
    ),
    *_prefix(
        ("the pool refuses displaced slots", "X2 S7"),
        needs="faults",
        when=(_RETAINS, _WINDOW, _POOL),
    ),
    *_prefix(
        ("a tombstone is revived under a hold", "S7 R6", "B19 B34 B35"),
        ("a hold is released after a tombstone on its path was revived", "S6 S7", "B19"),
        when=(_RETAINS, _WINDOW, _HALVES),
    ),
    *_prefix(
        ("the pool refuses a revival under a hold", "X2 S7"),
        ("the pool refuses the windows of an eviction", "X2", "B62"),
        ("the pool takes the windows of an eviction and refuses the rest", "X2", "B62"),
        needs="faults",
        when=(_RETAINS, _WINDOW, _HALVES),
    ),
    *_prefix(
        ("halves that were not returned are refused", "S7", "B37"),
        needs="exact_windows refuses_bad_arguments",
        when=(_RETAINS, _WINDOW, _HALVES),
    ),
)

_OF_STATES = (
    *_prefix(
        ("KV is found without a state", "M2", "B11"),
        ("a state arrives at its place", "M1", "B70"),
        ("a state comes back to where one was evicted", "M1 M5", "B59"),
        ("track slots run out", "X4", "B77"),
        ("track slots run out between match and insert", "X4 M7", "B77"),
        ("a node keeps its KV without its state", "M5", "B59"),
        ("a state goes while its KV is held", "M4 M5"),
        ("every state is locked and an eviction is asked for", "M4 M5"),
        ("a reset with states held", "X7 M7"),
        needs="mamba",
        when=(_RETAINS,),
    ),
    *_prefix(
        ("a state arrives under a hold", "M4", "B20"),
        ("a state arrives under several holds", "M4", "B20"),
        ("a hold is taken where there is no state", "M4", "B22"),
        needs="mamba bare_holds",
        when=(_RETAINS,),
    ),
    *_prefix(
        ("a match ends at an earlier state", "M2", "B11"),
        ("a match passes a state", "M2", "B11"),
        ("a state above does not count", "M1", "B74"),
        ("an eviction spares a locked state", "M4 M5"),
        ("an insert finds a state there already", "M1 M7"),
        ("several states lie on one path", "M2 M8", "B59"),
        ("a state is left for an older one", "M5 R8", "B59"),
        needs="mamba",
        when=(_RETAINS, _TRACKS),
    ),
    *_prefix(
        ("a split of a held node leaves its state", "M3 M4", "B22"),
        needs="mamba inspect",
        when=(_RETAINS, _SPLITS),
    ),
    *_prefix(("a policy spares what is older", "R11"), needs="exact_policy", when=(_RETAINS, _OTHER)),
    *_prefix(
        ("a stateless parent goes with its last child", "M5", "B44"),
        needs="mamba inspect exact_lru",
        when=(_RETAINS,),
    ),
    *_prefix(
        ("a state without a whole key is refused", "M1 X1", "B70 B71"),
        needs="mamba refuses_bad_arguments",
        when=(_RETAINS,),
    ),
    *_prefix(
        ("the state pool refuses an eviction", "X2 M7"),
        ("the state pool refuses a reset", "X2 X7"),
        needs="mamba faults",
        when=(_RETAINS,),
    ),
    *_prefix(
        ("the state pool refuses an eviction half-way", "X2 M7"),
        needs="mamba faults",
        when=(_RETAINS, _TRACKS),
    ),
)

PREFIX_GOALS = (*_ANY, *_OF_WINDOWS, *_OF_STATES)


def _is_short_of_tracks(config: Config) -> bool:
    """Tell whether the pool of states has fewer track slots than the pool of KV has pages."""
    tracks, slots, page_size = (config.get(key) for key in ("track_slots", "slots", "page_size"))
    if not (isinstance(tracks, int) and isinstance(slots, int) and isinstance(page_size, int)):
        return False
    return tracks < slots // page_size


_FORGETS = Condition("a cache that keeps nothing", lambda config: config.get("retains") is False)
_SHORT = Condition("fewer track slots than pages", _is_short_of_tracks)


def _lives(*rows: Row, needs: str = "", when: tuple[Condition, ...] = ()) -> tuple[CoverageGoal, ...]:
    return _prefix(*rows, needs=f"engine {needs}", when=when, of_engine=True)


ENGINE_GOALS = (
    *_lives(
        ("a waiting request is aborted", "E3", "B67"),
        ("a request is aborted while its prefix is held", "E3", "B67 B109"),
        ("a request is aborted between two chunks", "E3", "B109"),
        ("a request is aborted in decode", "E3"),
        ("the engine is drained with requests in it", "E3"),
        ("a request finishes in decode", "E3", "B103"),
        ("a request finishes inside its first chunk", "E3", "B115"),
        ("a request is retracted in decode", "E3", "B26 B98"),
        ("a request is retracted between two chunks", "E3", "B106 B110"),
        ("an admission fails", "E3 E4", "B112"),
        ("an admission fails for want of a row", "E3"),
        ("a request can never fit", "E4"),
        ("a retracted request is admitted again", "E1 E3", "B68 B110"),
        ("a request is retracted twice", "E3", "B26 B110"),
        ("a request that just fits finishes", "E4", "B64"),
        ("the engine comes to rest", "E3", "B100"),
        ("the cache is emptied at rest", "X7 E3", "B79"),
    ),
    *_lives(
        ("a full hit leaves a token to compute", "E4", "B115"),
        ("two requests hold one prefix", "E2 R6", "B17 B20"),
        ("a request is aborted while another holds part of its prefix", "E2 R6", "B20"),
        ("a retracted request finds cached what it had", "E1 E2", "B68"),
        ("duplicates are given back", "R4 E2", "B101"),
        ("an eviction makes room", "R5 E4", "B52"),
        ("an eviction makes room for a prompt just admitted", "X6 E4", "B121 B164"),
        ("evicting is not enough", "E4", "B121 B134"),
        ("somebody else evicts between two iterations", "R6 E2", "B01 B13"),
        when=(_RETAINS,),
    ),
    *_lives(("the cache takes nothing of what was computed", "E3 R4", "B103"), when=(_FORGETS,)),
    *_lives(("cached tokens lie behind a dead window", "S1 E1", "B31"), when=(_RETAINS, _WINDOW)),
    *_lives(("halves behind a window are returned", "S7 E2", "B37 B38"), when=(_RETAINS, _WINDOW, _HALVES)),
    *_lives(
        ("a request resumes from a state", "E1 M2", "B70 B76"),
        ("cached tokens lie beyond the last state", "M2", "B11"),
        ("a snapshot is taken where prompts part", "M1 M2", "B71 B80"),
        ("an eviction for slots takes a state along", "M5 M7"),
        ("a request is retracted while it holds a state", "E3 M4", "B68"),
        ("a request is aborted between two chunks while it holds a state", "E3 M4", "B67"),
        ("a request is aborted in decode while it holds a state", "E3 M4", "B67"),
        needs="mamba",
        when=(_RETAINS,),
    ),
    *_lives(
        ("track slots run out between match and insert", "X4 E4", "B77"),
        ("every state is locked and an eviction is asked for", "M4 M5", "B77"),
        ("a snapshot is left out for want of a track slot", "E4 M7", "B77"),
        ("an eviction makes room for a snapshot", "M5 X6", "B85"),
        needs="mamba",
        when=(_RETAINS, _SHORT),
    ),
    *_lives(
        ("the track slot of a state that is cached meanwhile is given back", "M1 M7", "B74"),
        ("a request is retracted with a track slot in its hands", "E3 M7", "B68"),
        ("an eviction spares a locked state", "M4 M5"),
        ("a state goes while its KV is held", "M4 M5"),
        ("several states lie on one path", "M2 M8", "B89"),
        needs="mamba",
        when=(_RETAINS, _TRACKS),
    ),
)
