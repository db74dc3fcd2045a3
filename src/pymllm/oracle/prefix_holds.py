"""Judging holds: which node a step names, and what locking and releasing it must do (R6, S5, X1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pymllm.errors import ProgramError
from pymllm.history.operations import Lock, Unlock
from pymllm.history.outcomes import Done, Locked, Outcome
from pymllm.oracle.models.prefix_model import Hold, NotUsableError, Path
from pymllm.oracle.node_book import HoldToken
from pymllm.oracle.prefix_books import PrefixBooks


@dataclass(frozen=True, slots=True)
class Handle:
    """A node that a step returned: the path at its end, and the number of the page there (0 for the root)."""

    path: Path
    birth: int


class HoldJudge:
    """Follows nodes by the steps that returned them, and holds by the steps that took them."""

    def __init__(self, books: PrefixBooks) -> None:
        self.books = books
        self.tokens: dict[int, HoldToken] = {}  # what each outstanding hold was given, by its `Lock`
        self._handles: dict[int, Handle] = {}
        self._given: dict[int, HoldToken] = {}
        self._revived: set[int] = set()

    # -- nodes ---------------------------------------------------------------------------------------------

    def give(self, step: int, path: Path) -> None:
        """Note that a step returned the node at the end of a path."""
        page = self.books.model.pages.get(path)
        self._handles[step] = Handle(path, page.birth if page else 0)

    def handle(self, step: int) -> Handle:
        """Return the node that a step returned, or took a hold at; `ProgramError` where it did neither."""
        if step not in self._handles:
            raise ProgramError(f"step {step} gave no node")
        return self._handles[step]

    def is_stale(self, handle: Handle) -> bool:
        """Tell whether the node has left the cache since."""
        page = self.books.model.pages.get(handle.path)
        return bool(handle.path.tokens) and (page is None or page.birth != handle.birth)

    def refuse_stale(self, handle: Handle, outcome: Outcome) -> str:
        """Judge the use of a node that has left (X1)."""
        books = self.books
        books.evidence.meet("a stale node is used")
        is_back = handle.path in books.model.pages
        books.evidence.meet("a stale node is used whose key is cached again", is_back)
        return self.books.expect_refusal("X1", "the use of a stale node", outcome, "StaleNodeError")

    # -- taking --------------------------------------------------------------------------------------------

    def judge_lock(self, step: int, operation: Lock, outcome: Outcome) -> str:
        """Judge a `Lock` and count the hold."""
        self.books.forbid("R4", "effects of a lock", outcome.effects)
        books, handle = self.books, self.handle(operation.of)
        if self.is_stale(handle):
            return self.refuse_stale(handle, outcome)
        try:
            hold = books.model.plan_lock(handle.path)
        except NotUsableError:
            books.evidence.meet("a hold is refused on a dead window")
            return books.expect_refusal("S5", "a hold on a dead window", outcome, "ValueError")
        token = books.answer(Locked, "R6", "lock", outcome).token
        if books.window is not None:
            self._check_token(hold, token)
            self._meet(hold)
        states = books.model.states
        if states is not None and handle.path.tokens and handle.path not in states:
            books.evidence.meet("a hold is taken where there is no state")
        self._handles[step], self._given[step] = handle, token
        if handle.path.tokens:
            self.tokens[step] = token
            books.model.commit_lock(step, hold)
            books.nodes.may_split([handle.path.upto(hold.edge)])
        return "R6"

    def _check_token(self, hold: Hold, token: HoldToken) -> None:
        """Test that there is a token iff the window leaves something out, and one per edge (S5)."""
        books = self.books
        rule = "a token where the window ends inside the path, and only there"
        books.demand("S5", (token is None) == (hold.edge == 0), "token of a hold", rule, lambda: token)
        for number, taken in books.model.holds.items():
            if not (hold.edge and taken.edge):
                continue
            same_edge = self._edge_page(hold) == self._edge_page(taken)
            expected = f"{'that' if same_edge else 'not that'} of step {number}: {self.tokens[number]!r}"
            is_right = (self.tokens[number] == token) == same_edge
            books.demand("S5", is_right, "token of a hold", expected, lambda: token)
            books.evidence.meet("two holds share an edge", same_edge)
            books.evidence.meet("two held windows overlap in part", self._overlap_in_part(hold, taken))

    def _overlap_in_part(self, one: Hold, other: Hold) -> bool:
        """Tell whether two windows share pages, and one has pages that the other has not."""
        start = max(one.edge, other.edge) + self.books.page_size
        first = one.path.upto(start)
        return one.path != other.path and len(first.tokens) == start and first.covers(other.path)

    def _edge_page(self, hold: Hold) -> Path:
        return hold.path.upto(hold.edge + self.books.page_size)

    def _meet(self, hold: Hold) -> None:
        books = self.books
        edge = hold.path.upto(hold.edge)
        books.evidence.meet("a hold splits at the edge of its window", books.nodes.cut(edge) is False)
        books.evidence.meet("a hold's window covers the whole path", hold.path.tokens and not hold.edge)
        if hold.edge:
            assert books.window is not None
            is_last = hold.edge + books.page_size == len(hold.path.tokens)
            books.evidence.meet("a held window is the last page alone", is_last)
            books.evidence.meet("a held window begins inside a page", books.window % books.page_size)

    # -- releasing -----------------------------------------------------------------------------------------

    def judge_unlock(self, step: int, operation: Unlock, outcome: Outcome) -> str:
        """Judge an `Unlock` and count the hold out."""
        books = self.books
        books.forbid("R4", "effects of an unlock", outcome.effects)
        token = self._token(operation)
        handle = self.handle(operation.lock if operation.at is None else operation.at)
        if self.is_stale(handle):
            return self.refuse_stale(handle, outcome)
        if not handle.path.tokens:
            books.expect("R6", "unlock of the root", Done(), outcome.result)
            return "R6"
        here = [number for number, hold in books.model.holds.items() if hold.path == handle.path]
        if not here:
            self._meet_unheld(handle.path, operation)
            return books.expect_refusal("R6", "an unlock without that hold", outcome, "LockError")
        number = operation.lock if operation.lock in here else here[0]
        if books.window is not None and token != self.tokens[number]:
            books.evidence.meet("a wrong token is refused")
            return books.expect_refusal("S5", "an unlock with a wrong token", outcome, "LockError")
        books.expect("R6", "unlock", Done(), outcome.result)
        books.count("S5", books.window is not None and token is not None)
        self._meet_release(number, len(here))
        books.model.commit_unlock(number)
        del self.tokens[number]
        return "R6"

    def _meet_release(self, number: int, holds: int) -> None:
        evidence, split = self.books.evidence, self.books.nodes.split_below
        if holds > 1:
            evidence.meet("one of two holds at a node is released")
        if number in split:
            evidence.meet("a hold is released after its path was split")
            split.discard(number)
        if number in self._revived:
            evidence.meet("a hold is released after a tombstone on its path was revived")
            self._revived.discard(number)

    def _token(self, operation: Unlock) -> HoldToken:
        if operation.token == 0:
            return None
        number = operation.lock if operation.token is None else operation.token
        for step in (number, operation.lock):
            if step not in self._given:
                raise ProgramError(f"step {step} took no hold")
        return self._given[number]

    def note_revival(self, ends: Iterable[Path]) -> None:
        """Note which holds have one of these pages, revived just now, on their paths."""
        for end in ends:
            holds = self.books.model.holds
            self._revived.update(number for number, hold in holds.items() if end.covers(hold.path))

    def _meet_unheld(self, path: Path, operation: Unlock) -> None:
        holds = self.books.model.holds
        self.books.evidence.meet(
            "a hold is released twice", operation.at is None and operation.lock not in holds
        )
        below = any(path.covers(hold.path) for hold in holds.values())
        self.books.evidence.meet("a hold is released at an ancestor", below)

    def reset(self) -> None:
        """Follow a reset: nothing is held any more, and every node but a root is stale."""
        self.tokens.clear()
        self._revived.clear()
        self.books.nodes.split_below.clear()
