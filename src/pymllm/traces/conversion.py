"""Traces made from others: in a format with fewer fields, or as an anonymous sample."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from pymllm.errors import UsageError
from pymllm.traces.forest import PrefixForest
from pymllm.traces.numbering import BlockNumbers, Names
from pymllm.traces.registry import FORMATS
from pymllm.workloads.request import Request


@dataclass(slots=True)
class Fitted:
    """Requests in the form that a format can hold, with the number of requests that lost each field.

    Where it has no namespaces, blocks of different ones get different numbers, so that they share nothing.
    Where it has no delays, times never go back. Where it tells sessions by parents, a request waits for one
    of its own session: for the latest, if it waits for none. ``added`` counts these.
    """

    format: str
    lost: Counter[str] = field(default_factory=Counter)
    added: int = 0
    _numbers: BlockNumbers = field(default_factory=BlockNumbers)
    _latest_ms: float = 0.0
    _session_of: dict[int, int] = field(default_factory=dict)
    _latest_of: dict[int, int] = field(default_factory=dict)  # session -> its latest request

    def __call__(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Yield the requests without values for which the format has no field."""
        keeps = FORMATS[self.format].keeps
        is_apart = "namespace" not in keeps
        for request in requests:
            for name in ("session", "wait_for", "delay_ms", "kind", "cached_tokens"):
                if name not in keeps and getattr(request, name) not in (None, ()):
                    self.lost[name] += 1
            is_waiting = "wait_for" in keeps and bool(request.wait_for)
            self.lost["arrival_ms"] += "arrival_ms" not in keeps and is_waiting and request.delay_ms is None
            if "parent" in keeps:
                request = self._with_parent(request)
            if "delay_ms" not in keeps:
                self._latest_ms = max(self._latest_ms, request.arrival_ms)
                request = replace(request, arrival_ms=self._latest_ms)
            yield self._renumbered(request) if is_apart else request

    def _with_parent(self, request: Request) -> Request:
        """Return a request that waits for at most one other, preferably of its own session."""
        session, waits = request.session, request.wait_for
        parents = waits[:1]
        if session is not None:
            latest = self._latest_of.get(session)
            own = [other for other in waits if self._session_of.get(other) == session]
            parents = tuple(own[:1]) or (() if latest is None else (latest,))
            self.added += bool(parents) and not own
            self._session_of[request.request_id] = session
            self._latest_of[session] = request.request_id
        self.lost["wait_for"] += not set(waits) <= set(parents)
        return replace(request, wait_for=parents)

    def _renumbered(self, request: Request) -> Request:
        numbers, namespace, ids = self._numbers, request.namespace, request.block_ids
        if namespace is None:
            return replace(request, block_ids=numbers.numbers(ids))
        return replace(
            request, block_ids=tuple([numbers.number_of((namespace, id)) for id in ids]), namespace=None
        )


class Groups:
    """The groups of requests that a sample keeps together: those of a session.

    A request without one goes on with the first request that had its longest shared beginning, if that is
    more than half of its blocks; else it begins a group.
    """

    def __init__(self) -> None:
        self._sessions = Names()
        self._forest = PrefixForest()
        self._owners: list[int] = []  # node -> the group whose request made it
        self._count = 0

    def of(self, request: Request) -> int:
        """Return the number of the group of the next request."""
        if request.session is not None:
            return 2 * self._sessions.number(request.session)
        path = self._forest.add(request)
        if 2 * len(path.shared) > len(request.block_ids):
            group = self._owners[path.shared[-1]]
        else:
            group, self._count = self._count, self._count + 1
        self._owners.extend([group] * path.added)
        return 2 * group + 1


def chosen_by_share(share: float, seed: int) -> Callable[[int], bool]:
    """Return a function that chooses a share of all groups, by a hash of the seed and the group."""
    bound = int(share * 2**64)

    def choose(group: int) -> bool:
        digest = blake2b(f"{seed} {group}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < bound

    return choose


def chosen_by_count(sizes: Counter[int], most: int, seed: int) -> Callable[[int], bool]:
    """Return a function that chooses groups at random, with at most ``most`` requests together."""
    order = sorted(sizes)
    random.Random(seed).shuffle(order)
    kept, left = set(), most
    for group in order:
        if sizes[group] <= left:
            kept.add(group)
            left -= sizes[group]
    if not kept:
        smallest = min(sizes.values(), default=0)
        raise UsageError(
            f"--requests is {most}, and the smallest session, which is kept whole, has {smallest}"
        )
    return kept.__contains__


def sampled(requests: Iterable[Request], choose: Callable[[int], bool]) -> Iterator[Request]:
    """Yield the requests of chosen groups, with new numbers and names.

    Requests, blocks, sessions and namespaces are numbered anew, in the order of the sample, and time begins
    with its first request. What a request waited for stays where that is in the sample.
    """
    groups, numbers, sessions, namespaces = Groups(), BlockNumbers(), Names(), Names()
    ids: dict[int, int] = {}
    begin_ms: float | None = None
    for request in requests:
        if not choose(groups.of(request)):
            continue
        begin_ms = request.arrival_ms if begin_ms is None else begin_ms
        wait_for = tuple(ids[other] for other in request.wait_for if other in ids)
        ids[request.request_id] = len(ids)
        yield replace(
            request,
            request_id=len(ids) - 1,
            arrival_ms=max(0.0, request.arrival_ms - begin_ms),
            block_ids=numbers.numbers(request.block_ids),
            namespace=None if request.namespace is None else namespaces.number(request.namespace),
            session=None if request.session is None else sessions.number(request.session),
            wait_for=wait_for,
            delay_ms=request.delay_ms if wait_for else None,
        )
