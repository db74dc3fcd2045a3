"""Situations that only the life of an engine over a prefix cache brings about (laws E1 to E5)."""

from __future__ import annotations

from pymllm.history.files import Config
from pymllm.oracle.situation import Condition, Row, Situation, make_situations

__all__ = ["ENGINE_SITUATIONS"]


def _is_short_of_tracks(config: Config) -> bool:
    """There are no more states than pages, and a few on their way."""
    tracks, slots, page_size = (config.get(key) for key in ("track_slots", "slots", "page_size"))
    if not (isinstance(tracks, int) and isinstance(slots, int) and isinstance(page_size, int)):
        return False
    return tracks < slots // page_size


def _has_several_tracks(config: Config) -> bool:
    tracks = config.get("track_slots")
    return isinstance(tracks, int) and tracks > 1


_RETAINS = Condition("a cache that keeps something", lambda config: config.get("retains") is not False)
_FORGETS = Condition("a cache that keeps nothing", lambda config: config.get("retains") is False)
_WINDOW = Condition("a window", lambda config: config.get("window") is not None)
_HALVES = Condition("a pool with SWA halves", lambda config: config.get("pool") == "swa")
_SHORT = Condition("fewer track slots than pages", _is_short_of_tracks)
_TRACKS = Condition("several track slots", _has_several_tracks)


def _lives(*rows: Row, needs: str = "", when: tuple[Condition, ...] = ()) -> tuple[Situation, ...]:
    return make_situations("prefix", *rows, needs=f"engine {needs}", when=when, of_engine=True)


ENGINE_SITUATIONS = (
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
