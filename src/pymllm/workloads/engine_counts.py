"""A second count of a run, made from the events of each request to check the first (law E6).

The counters of a run (`pymllm.workloads.engine_report.EngineTally`) go up where the work is done, chunk by
chunk and request by request. Here the same numbers follow from where each admission began and ended.
"""

from __future__ import annotations

from collections import Counter

from pymllm.errors import InvariantViolation
from pymllm.workloads.engine_report import EngineTally
from pymllm.workloads.live_request import LiveSequence


class CountedRun:
    """The counts of one run, in memory only for requests that have not ended."""

    _SUMS = (
        *("requests", "finished", "rejected", "aborted", "retractions"),
        *("prompt_tokens", "hit_tokens", "ceiling_tokens", "stateless_tokens"),
        *("computed_tokens", "recomputed_tokens", "uncomputed_tokens", "output_tokens"),
    )
    """The fields of a tally that are sums over requests."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._hits: dict[int, int] = {}  # of those admitted now, by their place
        self._readmitted: set[int] = set()  # places of those among them that were admitted before
        self._thrown_out: set[int] = set()  # places of those that wait to be admitted again
        self._untested = 0  # admissions since the last comparison
        self._impossible = ""  # the first hit above the ceiling; what is read there breaks other laws before

    def reject(self, live: LiveSequence) -> None:
        """Count a request that can never be admitted."""
        self._end("rejected")

    def admit(self, live: LiveSequence) -> None:
        """Record an admission, and count the prompt at the request's first one."""
        hit, ceiling = live.hit_tokens, live.ceiling_tokens
        self._hits[live.place] = hit
        self._untested += 1
        if live.place in self._thrown_out:
            self._thrown_out.remove(live.place)
            self._readmitted.add(live.place)
            return
        if not 0 <= hit <= ceiling and not self._impossible:
            self._impossible = (
                f"request {live.request_id}: {hit} tokens of its prompt are a hit, and an unlimited cache "
                f"would have served {ceiling}"
            )
        self._sums.update(
            prompt_tokens=live.request.prompt_length,
            hit_tokens=hit,
            ceiling_tokens=ceiling,
            stateless_tokens=live.stateless_tokens,
        )

    def retract(self, live: LiveSequence) -> None:
        """End an admission whose request waits again."""
        self._close(live)
        self._thrown_out.add(live.place)
        self._sums["retractions"] += 1

    def abort(self, live: LiveSequence) -> None:
        """End the admission, if any, of a request that is aborted."""
        self._close(live)
        self._thrown_out.discard(live.place)
        self._end("aborted")

    def finish(self, live: LiveSequence) -> None:
        """End the admission of a request that has produced all its tokens."""
        self._close(live)
        self._sums["output_tokens"] += live.request.output_length
        self._end("finished")

    def _end(self, how: str) -> None:
        self._sums.update(requests=1, **{how: 1})

    def _close(self, live: LiveSequence) -> None:
        """Count the tokens computed in an admission, and those that a first admission left uncomputed."""
        hit = self._hits.pop(live.place, None)
        if hit is None:
            return
        # A request that has computed nothing may have no length yet.
        end = min(max(hit, live.length), live.prompt_length)
        computed = end - hit
        self._sums["computed_tokens"] += computed
        if live.place in self._readmitted:
            self._readmitted.remove(live.place)
            self._sums["recomputed_tokens"] += computed
        else:
            self._sums["uncomputed_tokens"] += live.prompt_length - end

    def check(self, tally: EngineTally) -> bool:
        """Compare a tally with the sums over all requests, once all have ended (law E6).

        Returns whether that was a test: whether a request was admitted since the last time.
        """
        if self._impossible:
            raise InvariantViolation("E6", self._impossible)
        for name in self._SUMS:
            expected, observed = self._sums[name], getattr(tally, name)
            if observed != expected:
                raise InvariantViolation(
                    "E6",
                    f"the run counts {observed} {name}, and its {self._sums['requests']} requests have "
                    f"{expected} in sum",
                )
        is_test, self._untested = self._untested > 0, 0
        return is_test
