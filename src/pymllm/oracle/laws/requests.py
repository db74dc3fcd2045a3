"""Laws of whole requests, on which an engine may rely."""

from __future__ import annotations

from typing import Any

from pymllm.history.operations import Match, ReadStates
from pymllm.oracle.laws.law import Broken, Found, demand, law
from pymllm.oracle.models.prefix import CacheModel
from pymllm.oracle.models.prefix_seen import SeenMatch, SeenTracks


@law("E1", page="requests", ways="sop", kinds="prefix requests")
def a_read_finds_what_a_cold_run_wrote(before: Any, operation: Any, seen: Any) -> Found:
    """Every read finds what a cold run would have written.

    A **cold run** computes a request alone, from its first token, with nothing cached. The KV of a token and
    the state after it depend on the namespace and on all tokens up to this token, in order. All values read
    for a request (KV through its row, the halves of a window, its live state) must equal those of a cold run
    of this request at that place, whatever their origin. Totals that balance prove nothing.

    **Kind `requests`.** The implementation has a forward pass that computes the numbers of [the simulated
    model](requests.md#the-simulated-model) from the values that it reads through its own tables: KV from the
    token before in the row, states from the live state. Compared exactly are

    - in `ran`, for each request: `start` and `count`, whether it samples, the live state that was read (after
      `start` tokens), and the KV of each of its blocks up to the last computed token, once written;
    - in each shown request: the KV of its whole blocks so far, shared blocks included, and its live state. If
      the request was added with a restored state, this is the state after the skipped tokens; after a cut it
      is the state after the kept tokens. The content of blocks that are not, or no longer, computed is not
      compared.

    In the `ran` of a failed step all of this is compared, too, except that `kv` may be empty. From then on
    only the places and blocks of its requests are compared: they can only be released.

    **Kind `prefix`.** By outcomes alone: the caller has written the KV of a key into the slots that it
    inserts, so the content of a slot is the path up to its token. Every slot that a match returns must have
    the content of its own place in the key; within the last *W* tokens its half must, too (S7 moves halves).
    Freed slots have no content. `read_states` of a track slot must return the values written there for
    exactly this prefix.

    In an engine (claim `engine`) real values are compared: the engine writes numbers into KV memory of its
    own, at the slots that it was given. It reads each request's row at its admission, after each chunk and at
    its end: all positions, and the halves of the last *W*. Whenever a row is compared, the state is compared
    bit for bit.

    Why
    ---
    Users see the result: an answer that continues another user's conversation. Slots shared by mistake, a
    stale half, a state one block too early, a collision of hashes: none of these crashes the server, and
    every size stays right.

    Choices
    -------
    Where KV is kept, and whether known values are computed again.

    Caller
    ------
    In kind `prefix`: to write the KV of a key before the insert, and to pass matched slots back at the same
    place.

    Engines
    -------
    - No engine compares with a cold run in production. sglang and vLLM rely on ownership (R4, C3); vLLM on a
      hash of all tokens before (`vllm/v1/core/kv_cache_utils.py`, `hash_block_tokens`).
    - Megatron Core 0.16.1 shares nothing between requests, so each run is a cold run.
    """


@a_read_finds_what_a_cold_run_wrote.on(Match, kinds="prefix")
def _a_match_has_the_kv_of_a_cold_run(before: CacheModel, operation: Match, seen: SeenMatch) -> Found:
    """Compare the contents of the matched slots, of any owner, with a cold run."""
    content, slots = before.ownership.content, seen.result.slots
    if not slots or not content.is_known(slots):
        return None
    window = before.cache.window if before.has_halves else None
    wrong = content.first_wrong(seen.found.path, slots, window)
    return demand(wrong is None, "KV of a match", "what a cold run would have written", wrong)


@a_read_finds_what_a_cold_run_wrote.on(Match, kinds="prefix")
def _a_match_has_the_state_of_a_cold_run(before: CacheModel, operation: Match, seen: SeenMatch) -> Found:
    state, tracks = seen.result.state, before.tracks
    if state is None or tracks is None:
        return None
    content = tracks.content(state)
    what = "what a cold run would have computed"
    return demand(content == seen.found.path, "state of a match", what, f"the state after {content}")


@a_read_finds_what_a_cold_run_wrote.on(ReadStates, kinds="prefix")
def _what_was_written_stays(before: CacheModel, operation: ReadStates, seen: SeenTracks) -> Found:
    for place, expected in seen.expected.items():
        if seen.found[place] != expected:
            return Broken(f"{place[0]} state in track slot {place[1]}", expected, seen.found[place])
    return len(seen.expected) > 0 or None


@law("E2", page="requests", ways="sop", kinds="prefix requests", needs_in={"prefix": "engine"})
def a_row_names_what_its_request_has(before: Any, operation: Any, seen: Any) -> Found:
    """A live request's row names only what it owns or holds.

    **Kind `requests`.** A request's row has its blocks in the order of its tokens, as many as its tokens have
    needed so far, and nothing behind them. Each is shared or was allocated for the request, which has a
    reference to each. A row never loses or exchanges a block while the request lives: blocks are appended.
    Only `truncate` takes blocks away: those behind the last block in which the request keeps a token. A new
    owner of a row finds no entry of the previous owner.

    Requests are in rows 0, 1, 2, ... without gaps, by region: paused, decoding, with a chunk, waiting. Within
    a region the order is free, and a request may change its row at any time. A step computes exactly the
    decoding requests and the requests with a chunk, decoding requests first, by rows. The KV of a token is
    written to its own place, place *i* mod *B* of block floor(*i* / *B*) of the row, in ascending order and
    without a gap (E5 has the exception for shared blocks).

    `request`, `region`, `row`, `blocks` and `finished` are compared wherever a request is shown. A step that
    would exceed a row's maximum of blocks is refused with a `UsageError`, before anything has changed.

    **Kind `prefix`, in an engine.** A request's row names the slots of its held prefix, and then its own
    slots. After each iteration

    - each page in use has one owner: one live request, or the cache;
    - none of these pages is free in the pool, and no SWA half belongs to two pages;
    - the held part of a row equals, slot by slot, the cache's slots of that prefix;
    - a track slot has one owner;
    - behind the held prefix a new row is empty, and a free row is empty.

    The cache breaks this law if it frees, evicts or replaces slots under a hold (R6), adopts unreported slots
    (R4), returns the node of other slots (R2), or refuses a correct match, insert, lock or eviction.

    Why
    ---
    A page that has left the cache is handed to the next request, which writes its own tokens there. A request
    whose row still names this page attends to these tokens. If a row keeps a finished request's entries, its
    successor reads blocks of others, and at the next release these blocks are freed, too.

    Choices
    -------
    The order within a region. Whether rows move at once or in batches.

    Caller
    ------
    Not to use a request after its release. Not to cut a request in a block that another request reads.

    Engines
    -------
    - sglang frees duplicates inside the insert, then matches again, writes the tree's slots into the row, and
      gives up the old hold before it takes the new hold; nothing is allocated meanwhile
      (`sglang/srt/mem_cache/radix_cache.py`, `_insert_cache`, `checkpoint`). The order differs.
    - vLLM: block tables are append-only; a request keeps duplicates of its own instead
      (`vllm/v1/core/block_pool.py`, `BlockHashToBlockMap`).
    - Megatron Core 0.16.1: rows of paused requests first, then rows of active requests (`dynamic_context.py`,
      `update_requests`); a row is set to -1 when its request ends
      (`release_memory_blocks_from_request_indexes`).
    """


@law("E3", page="requests", ways="sop", kinds="prefix requests", needs_in={"prefix": "engine"})
def every_exit_gives_everything_back(before: Any, operation: Any, seen: Any) -> Found:
    """Every exit gives everything back.

    A request may leave at any time. It may finish; be aborted in the queue, after its prefix was locked,
    between two chunks, in decode or while paused; be retracted for lack of memory; or not be admitted at all.
    Its resources are then given back, each once: its references or holds, its own slots, its row, its live
    state, its unused track slot. Shared blocks stay.

    **Kind `requests`.** `release` takes a request in any region, also after a failed step, and before
    anything was computed. It gives back one reference to each of the request's blocks. Unregistered blocks
    that reach 0, and with `ref_zero` all blocks that reach 0, are free: the callbacks of this operation
    report them (C6), and they lose their slots. Other blocks that reach 0 are cached. An operation that fails
    or finds no room leaves no reference behind (X2, X4). To release a request twice is a `UsageError`. All
    sizes are compared after each operation.

    **Kind `prefix`, in an engine.** At the end of each iteration, in both halves,

    free tokens + cached tokens + tokens that requests own = tokens of the pool

    and the same for track slots. When no request lives, nothing is locked, every row is free and empty, and
    pool and cache own everything. The engine then evicts everything (`evict` of `total_size` and of
    `swa_evictable_size`): the cache must be empty, `total_size` 0, and the pool complete. A cache that
    refuses a valid release or a valid `free` breaks this law.

    Why
    ---
    A server that loses one page with every hundredth abort stops after a day. Leaks happen at rare exits: an
    abort between two chunks, a request that ends within its first chunk, an admission that fails after its
    prefix was pinned. Engines check for leaks when they idle, and kill the server if they find a leak.

    Choices
    -------
    The order in which resources are given back.

    Caller
    ------
    To release each request once, to lock and release at the same node, and to free its own slots that the
    cache did not adopt.

    Engines
    -------
    - sglang frees duplicates and the tail, unlocks, and frees the row; when idle it compares totals and
      reports a leak (`sglang/srt/managers/scheduler_components/invariant_checker.py`).
    - vLLM: `KVCacheManager.free` gives all blocks back, the last first; a preempted request gives up all its
      blocks and begins again (`vllm/v1/core/sched/scheduler.py`, `_preempt_request`).
    - Megatron Core 0.16.1: `release_memory_blocks_from_request_indexes` gives back blocks and the row of
      the live state; when no request is left, counts and live states are set back as a whole
      (`dynamic_context.py`, `update_requests`).
    """


@law("E4", page="requests", ways="sop", kinds="prefix requests", needs_in={"prefix": "engine"})
def admission_succeeds_where_there_is_room(before: Any, operation: Any, seen: Any) -> Found:
    """Admission succeeds whenever free and evictable suffice.

    **Room.** *F* are the free tokens, and *V* the evictable tokens before a request is considered. The
    request will hold its matched prefix, which must not be evicted for this request: *h* is that part of *V*.
    If the request needs *n* tokens beyond its matched prefix, it must get them if and only if

    *n* <= *F* + *V* - *h*

    So "free and evictable" does not include the request's own prefix: a request that would have to evict its
    own hit must not be admitted. Free tokens are used first, and an eviction provides the rest.

    **One token is left to compute.** A request computes at least its last prompt token, even if the whole
    prompt is cached, because its next token is sampled from that computation.

    **Kind `requests`**, in blocks. A request needs room only for its next tokens: not for the rest of its
    prompt, and not for later output. *B*, *p* and *m* are as in C8. *M* are the matched blocks (C3); the
    request shares all of them, also where it computes some of their tokens again.

    | operation | *n* | room |
    | --- | --- | --- |
    | `add_request` | ceil(*t* / *B*) - *m*, at least 0 | all blocks neither referenced nor in *M* |
    | `schedule_chunk` | ceil(*t* / *B*) minus the blocks that it has | all blocks without references |
    | `run_step` | one for each decoding request whose blocks are full | all blocks without references |

    Every block without references is free or evictable, so this is *F* + *V* - *h*. *t* = min(*p*, *s* +
    `limit`) is the end of the chunk, *p* without a limit. In the first chunk *s* is the number of tokens that
    need not be computed: *B* times the largest *j* <= min(*m*, floor((*p* - 1) / *B*)) for which the *j*-th
    matched block has a cached state, 0 if there is none; without recurrent layers any *j* is allowed. Later
    *s* is the number of computed tokens. `add_request` also needs a row: fewer than `max_requests` requests,
    paused requests included. Without row or room it answers `no_room`, and so does `schedule_chunk`. Then
    nothing has changed, and the matched blocks are evictable again, with unchanged recency. `run_step` gives
    blocks to all decoding requests or to none, and then answers `CapacityError` (or
    `MambaSlotCapacityError`). Slots for states are never required: see C7. A prompt that could never fit,
    because it has more blocks than `max_blocks` or than exist, is a `ValueError`.

    **Reserve.** With a `reserve` of *r* blocks (claim `reserve`) a request is admitted if and only if there
    is room for its whole prompt and for *r* more blocks: with *w* = ceil(*p* / *B*) - *m* in place of *n*,

    *w* + *r* <= room

    and otherwise the answer is `no_room`, even if its chunk would fit. The request gets only the blocks of
    its chunk. A scheduler that reserves more or less than it declares breaks this law.

    **Kind `prefix`, in an engine**, in tokens. Here the engine decides about admission. It matches the whole
    pages of all but the last token of the prompt (so the engine itself leaves one token to compute), locks
    the result, and only then reads `evictable_size`, when *h* is protected. It needs room for the rest of
    this prompt and of the prompts in progress. The cache must allow the engine to continue:

    - If *n* tokens in whole pages are not free, but free + evictable is enough in either half, then after one
      `evict` of the missing number (in each half) they are free.
    - A request that runs alone and fits into the pool is admitted, and can grow to its end. With a window it
      fits if the second half has room for its pages, or for two windows and a page, whichever is smaller.
    - A match never returns more than the key, and no correct `alloc` is refused.
    - The engine itself admits if and only if *F* + *V* - *h* covers the remaining need of the prompts in
      progress and the declared reserve for requests in decode (`decode_headroom` tokens of each, in new
      pages).

    Why
    ---
    A scheduler that counts the matched prefix as evictable admits a request, evicts the request's own prefix
    to make room, and reads pages of others; or it notices the missing room only after the admission, and
    stops on an assertion. An engine that counts only free tokens idles while the whole pool is cached. A full
    hit with nothing to compute has crashed attention kernels.

    Choices
    -------
    When a request is tried again, and the order of requests. The victims, within R8 and C1.

    Caller
    ------
    To lock the matched prefix before it allocates, and to release the hold if it cannot continue.

    Engines
    -------
    - sglang pins the prefix while it counts free and evictable tokens, so that the prefix is in neither
      (`sglang/srt/managers/schedule_policy.py`, `PrefillAdder.add_one_req`, `_lock_node`), and adds an
      estimate of the output. It matches one token less than the prompt has (`schedule_batch.py`,
      `_compute_max_prefix_len`).
    - vLLM adds matched blocks without references to the needed number and compares the sum with the free
      blocks, cached blocks included (`single_type_kv_cache_manager.py`, `get_num_blocks_to_allocate`): the
      same sum. A hit covers at most all tokens but one, in whole blocks (`kv_cache_manager.py`,
      `get_computed_blocks`), so the last block of a full hit is not shared: different.
    - Megatron Core 0.16.1: `check_availability` reads the free blocks; nothing is cached. No request is
      added while one is paused.
    """


@law("E5", page="requests", ways="sop", kinds="rows buffers prefix requests", needs_in={"prefix": "engine"})
def padding_lands_in_slot_0(before: Any, operation: Any, seen: Any) -> Found:
    """Padding lands in slot 0 and row 0, and nowhere else.

    A batch is padded to the size of a captured graph, and its padded entries write, too. There is a reserved
    place for these writes, with undefined content:

    | kind | padding |
    | --- | --- |
    | `buffers` | slot 0 of each layer, keys and values |
    | `rows` | row 0 |
    | `prefix`, in an engine | slot 0, its half 0, row 0 of the table and of the working states |
    | `requests` | the dummy block |

    **Kinds `rows` and `buffers`.** A write of single entries (`write_entries`) to row 0, or of KV to slot 0,
    is no error. It changes only the named places, and later reads return the written values. Where one call
    names a place several times, each element may be any of these values. Reading padding is allowed.

    **Kind `prefix`, in an engine.** The engine pads each batch to a multiple of eight with slot 0 and row 0,
    and writes garbage there. When no request runs, the engine compares every other slot, half and row of
    states with the values that it wrote. So slot 0 must never be handed out, adopted or returned (A1), and
    the half of slot 0 is 0 (A7).

    **Kind `requests`.** A token in a shared block, one of the *m* matched blocks, is computed again where it
    is not skipped (E4). Its KV is cached already, and other requests read it. `writes` may name a place in
    the dummy, `num_blocks` - 1, or the token's own place; the values are the same. All other tokens are
    written to their own place, and never to the dummy. Each entry of `writes` stays within a block. Padding
    of the forward pass is written to the dummy, too.

    Why
    ---
    Padded entries with the index -1 wrapped around, and overwrote the last slot of the pool. Where row 0
    belonged to a real request, padded decode steps advanced its recurrent state. Both give wrong answers to
    one user in many, and only at batch sizes that are padded.

    Choices
    -------
    The content of unwritten padding. Whether shared KV is written again.

    Caller
    ------
    Never to read padding for a request.

    Engines
    -------
    - sglang: padded tokens write to slot 0, and with pages to the page of slot 0
      (`sglang/srt/mem_cache/memory_pool.py`; `allocator/mamba.py` for states). The same.
    - vLLM: padded entries have the slot -1, which its kernels skip
      (`vllm/v1/attention/backends/utils.py`, `PAD_SLOT_ID`); block 0 is a null block. Different.
    - Megatron Core 0.16.1: padded tokens are sent to the dummy block, which is the last block
      (`dynamic_context.py`, `initialize_attention_state`). The same as in kind `requests`.
    """


@law(
    "E6",
    page="requests",
    ways="sop",
    kinds="prefix requests",
    needs_in={"prefix": "engine", "requests": "engine reserve"},
    is_of_runs=True,
)
def counters_of_a_run_are_sums_over_its_requests(before: Any, operation: Any, seen: Any) -> Found:
    """The counters of a run are sums over its requests.

    A **run** is the work of an engine between two moments at which no request waits or lives. An
    **admission** begins when a request gets memory, with a hit of *h* tokens and a prompt of *p*, and ends
    when the request is retracted, aborted or finished, with *l* tokens computed or served. A retracted
    request is admitted again, with its produced tokens at the end of its prompt. An admission computes
    min(*l*, *p*) - *h* tokens of the prompt, and leaves *p* - min(*l*, *p*) uncomputed.

    | counter | is |
    | --- | --- |
    | `requests` | all arrived requests: `finished`, `rejected` and `aborted` together |
    | `prompt_tokens` | *p* of each request at its first admission |
    | `hit_tokens` | *h* of the same admissions |
    | `ceiling_tokens` | tokens that an unlimited cache would have served instead |
    | `computed_tokens` | computed tokens of all admissions |
    | `recomputed_tokens` | computed tokens of all but first admissions |
    | `uncomputed_tokens` | uncomputed tokens of first admissions |
    | `output_tokens` | tokens to produce, of finished requests |

    **Once.** A request counts once in the first four, however often it is considered, refused, set aside,
    retracted and admitted again. The prompt of a request that is never admitted does not count.

    **Hits.** 0 <= *h* <= ceiling < *p* for each request: a hit was cached for an earlier request; a retracted
    request's own tokens are no hit. The same applies to the sums, and to rates, which are these sums divided
    by `prompt_tokens`.

    **Hits and computed tokens make the prompts:**

    `prompt_tokens` = `hit_tokens` + (`computed_tokens` - `recomputed_tokens`) + `uncomputed_tokens`

    `recomputed_tokens` and `uncomputed_tokens` are 0 if no request was retracted or aborted.

    **Where it is checked.** Whenever no request waits or lives, the engine compares its counters with its own
    sums over the beginning and end of each admission. A document of `pymllm replay` is judged by these rules
    alone: a run that contradicts itself is named, and not drawn. An interrupted run is incomplete, and is not
    judged.

    Why
    ---
    A wrong counter crashes nothing, but capacity planning relies on it. Where preempted requests counted as
    hits of their own blocks, a benchmark of random prompts reported a hit rate of 30 % instead of 0.2 %; a
    hit of -1 tokens stopped a server in its metrics.

    Choices
    -------
    Which counters it has. Whether it also reports hits of later admissions, under another name.

    Caller
    ------
    To let every request end before the sums are compared.

    Engines
    -------
    - sglang keeps a request's cached tokens from before its retraction, without those of its own
      chunks (`sglang/srt/managers/schedule_batch.py`, `retracted_stain`, `already_computed`), and excludes
      reprocessed tokens from a batch's rate (`schedule_policy.py`, `reprocessed_log_hit_tokens`). The same.
    - vLLM records a lookup once the request is scheduled, and the lookup of a preempted request separately
      (`vllm/v1/core/kv_cache_manager.py`, `record_prefix_cache_stats`). Computed, cached and transferred
      tokens add up to the prompts by construction (`vllm/v1/metrics/stats.py`, `PromptTokenStats`): the
      computed tokens are derived from the hit, and not counted during the computation.
    """
