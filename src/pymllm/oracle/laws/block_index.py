"""The laws of an index of each worker's blocks (kind `index`): its events and its search results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from pymllm.history.operations import (
    ClearWorker,
    DropWorker,
    FindBlocks,
    Inspect,
    Rebuild,
    RemoveBlocks,
    Reset,
    StoreBlocks,
    values_of,
)
from pymllm.history.outcomes import Done, Indexed, IndexedBlock, Leading, Missed, NotThere
from pymllm.oracle.laws.every_class import a_look_changes_nothing
from pymllm.oracle.laws.goal import Condition, Met, make_goals
from pymllm.oracle.laws.law import Asked, Broken, Found, KindLaws, demand, law, same
from pymllm.oracle.models.block_index import (
    EARLY,
    MISSING,
    ORPHANED,
    REPEATED,
    Bounds,
    Event,
    IndexModel,
    SeenEvent,
    SeenRemoval,
    SeenSearch,
    SeenStore,
)
from pymllm.oracle.models.kind_model import DONE, Seen

_PAGE = "block-index"
_NOTHING = Bounds(0, 0)


@law("I1", FindBlocks, page=_PAGE, ways="op", kinds="index")
def who_has_leading_blocks_is_told(before: IndexModel, operation: FindBlocks, seen: SeenSearch) -> Found:
    """A search tells each worker's leading blocks, and no worker without any.

    A worker **has** a block if an event of this worker stored the block and none has removed it since: no
    `remove_blocks` that names its hash, no `clear_worker`, no `drop_worker`, no `reset`. For `tokens`
    *t<sub>1</sub>* to *t<sub>n</sub>* the blocks of the **sequence** are *t<sub>1</sub>* without a parent,
    *t<sub>2</sub>* below *t<sub>1</sub>*, and so on. The **leading** blocks of a worker are the blocks of the
    sequence from its front on, up to the first block that the worker does not have.

    `find_blocks` answers `leading`: a pair of worker and count for each worker with a leading block, once, in
    ascending order of workers. No other worker is named, not even a worker with later blocks of the sequence.
    The count is exact, except where a gap was closed (I5). Without tokens the answer is empty.

    A store takes effect at once: the next search reports the block.

    Why
    ---
    A router sends a request to the server with most of its prefix. If the index reports too much, the prefix
    must be computed again there, and everything behind the request waits; if it reports too little, a cache
    is not used. An index that continued after a gap gave the best score to a server that no longer had the
    beginning.

    Choices
    -------
    Its data structure: one tree for all workers, a table for each, hashes by position.

    Caller
    ------
    To use each hash for one sequence, and one hash for each sequence: of all workers, or with `own_hashes` of
    each. To send every event, in its worker's order.

    Engines
    -------
    - dynamo 1.6.1: one compressed radix tree for all workers (`lib/kv-router/src/indexer/radix_tree.rs`,
      `find_match_details`): the same. Events name blocks by the hashes of the sequence, searches use the
      hashes of the tokens. If workers hash in different ways, answers are wrong
      ([finding](../../peers/findings/dynamo/own-hashes-are-not-removed.md)).
    - llm-d 7be76e1: a table of blocks, with the workers that have each, and a scorer that follows each worker
      to its first gap (`pkg/kvcache/kvblock_scorer.go`): the same. Searches once continued after a gap ([pull
      request 688](https://github.com/llm-d/llm-d-kv-cache/pull/688)).
    - aibrix e3e10f9: a similar table; blocks of one event are stored side by side
      ([finding](../../peers/findings/aibrix/blocks-of-an-event-stand-side-by-side.md)).
    - sglang, vLLM and Megatron Core have no such index. The first two send the events for an index.
    """
    workers = [worker for worker, _ in seen.result.workers]
    if workers != sorted({*workers}):
        return Broken("workers of an answer", "each once, ascending", workers)
    if not all(seen.told.values()):
        return Broken("workers of an answer", "with a block or more", seen.result.workers)
    return None if operation.early else _judge_search(before, operation, seen)


def _judge_search(before: IndexModel, operation: FindBlocks, seen: SeenSearch) -> Found:
    for worker, count in _counts_of(seen):
        least, most = seen.bounds.get(worker, _NOTHING)
        if not least <= count <= most:
            expected = least if least == most else f"{least} to {most}"
            broken = before.law_of(worker, operation)
            return Broken(f"leading blocks of worker {worker}", expected, count, broken)
    tested = {
        before.law_of(number, operation)
        for number in before.workers
        if _is_test(before, number, operation, seen)
    }
    if seen.strange:
        tested.add("I13")
    return ("I1", *sorted(tested - {"I1"}))


def _counts_of(seen: SeenSearch) -> Iterator[tuple[int, int]]:
    """Yield each worker that a search reported or should have, with the number of blocks reported."""
    for worker in sorted({*seen.told, *seen.bounds}):
        yield worker, seen.told.get(worker, 0)


def _is_test(before: IndexModel, number: int, operation: FindBlocks, seen: SeenSearch) -> bool:
    """Tell whether a search could show that the last event on a worker took effect or was lost."""
    worker, path = before.workers[number], seen.paths[number]
    if worker.touched is None:
        return bool(path) and path[0] in worker.named.get(operation.group, ())
    return not worker.touched.isdisjoint(path)


@law("I2", page=_PAGE, ways="op", kinds="index")
def events_change_nothing_of_others(before: IndexModel, operation: object, seen: Seen) -> Found:
    """An event of one worker changes nothing of another's.

    `store_blocks`, `remove_blocks`, `clear_worker` and `drop_worker` change only their worker: every other
    worker has the same leading blocks of every sequence as before. This applies to blocks that two workers
    share, to one worker's blocks below another's, and to blocks that were cut off (I5): an event of another
    worker neither restores them, nor removes them once a search has reported them.

    Why
    ---
    In a tree of all workers a block is one node. If the node is removed or split, or its descendants are cut
    off, although only one of its workers has lost the block, the other workers lose their blocks, too, or
    blocks reappear.

    Choices
    -------
    None.

    Caller
    ------
    Nothing.

    Engines
    -------
    - dynamo 1.6.1: children of a node are removed when no worker has the whole node (`radix_tree.rs`,
      `clear_children_if_unreachable`): the same, because a worker that has only a part of a node has nothing
      below it.
    - An index of dynamo for many threads broke this between a split and a removal ([pull request
      11169](https://github.com/ai-dynamo/dynamo/pull/11169)).
    - aibrix e3e10f9: one worker's removal takes the block from all
      ([finding](../../peers/findings/aibrix/a-removal-takes-the-block-from-all.md)).
    """


@law("I3", page=_PAGE, ways="op", kinds="index")
def nothing_is_stored_below_what_is_not_there(
    before: IndexModel, operation: StoreBlocks, seen: Seen
) -> Found:
    """Below a parent that the worker does not have nothing is stored.

    `store_blocks` with a `parent` that its worker does not have changes nothing. The answer is `not_there`,
    or `done` from an index that ignores such an event. It makes no difference whether other workers have the
    parent.

    If the parent was cut off, and so may be forgotten (I5), an index may store the blocks or ignore the
    event. If stored, the blocks are cut off, too. Below every other parent that the worker has, the answer is
    `done`.

    Why
    ---
    Events are lost, or come before the index listens. A block of unknown place is not at the front of a
    sequence. If it is put there, or below another worker's block, it is found for prompts that do not contain
    it.

    Choices
    -------
    Whether it tells.

    Caller
    ------
    To send the whole sequence again after the answer `not_there`. A caller that sends only the parent must
    also send the blocks below it again.

    Engines
    -------
    - dynamo 1.6.1: `ParentBlockNotFound` (`radix_tree.rs`, `apply_stored`), which its Python interface
      raises as `RuntimeError`: the same.
    - llm-d 7be76e1: nothing is stored below an unknown parent; another worker's parent is enough
      ([finding](../../peers/findings/llmd/another-workers-parent-is-enough.md)).
    - aibrix e3e10f9: the block is put at the front
      ([finding](../../peers/findings/aibrix/a-block-without-its-parent-is-put-in-front.md)).
    """


@nothing_is_stored_below_what_is_not_there.on(StoreBlocks, fate=ORPHANED)
def _such_a_store_is_told_or_ignored(before: IndexModel, operation: StoreBlocks, seen: SeenStore) -> Found:
    return _is_done_or_not_there(seen)


def _is_done_or_not_there(seen: Seen) -> Found:
    is_right = seen.result in (Done(), NotThere())
    return demand(is_right, "what becomes of it", "done or not_there", seen.result)


@law("I4", page=_PAGE, ways="op", kinds="index")
def repeated_events_change_nothing(before: IndexModel, operation: object, seen: Seen) -> Found:
    """To store again, or to remove what is not there, changes nothing.

    `store_blocks` of blocks that the worker has answers `done`, and every search gives the same answer as
    before. One removal is enough afterwards, however often a block was stored, unless `counts_copies` is
    claimed (I10). `remove_blocks` skips hashes that its worker does not have, or that the event names more
    often than there are copies, and removes the others. If it skips a block, or names a block that may be
    forgotten (I5), it may answer `not_there` instead of `done`.

    Why
    ---
    Servers send events twice: after a connection is lost, and where two requests compute a prompt at once. An
    index that counted repeated events kept blocks for ever; an index that stopped at the first unknown hash
    kept the rest of the event. An entry that a removal could not resolve stayed, and was still counted.

    Choices
    -------
    Whether it tells.

    Caller
    ------
    To know: if a server has two copies of a block and sends a removal with the first copy, the index reports
    none, unless it counts copies (I10).

    Engines
    -------
    - dynamo 1.6.1: the same; a removal that skips a hash raises after the rest is done (`radix_tree.rs`,
      `apply_removed`). Its index for many threads kept entries ([pull request
      11785](https://github.com/ai-dynamo/dynamo/pull/11785)).
    - vLLM 0.33 sends a removal while a copy is left; two changes are proposed: to send the removal with the
      last copy ([pull request 55092](https://github.com/vllm-project/vllm/pull/55092)), or to send the number
      of remaining copies ([pull request 48933](https://github.com/vllm-project/vllm/pull/48933)).
    """


@repeated_events_change_nothing.on(RemoveBlocks, fate=MISSING)
def _such_a_removal_is_told_or_not(before: IndexModel, operation: RemoveBlocks, seen: SeenRemoval) -> Found:
    return _is_done_or_not_there(seen)


@law("I5", page=_PAGE, ways="op", kinds="index")
def what_is_removed_is_not_found(before: IndexModel, operation: object, seen: Seen) -> Found:
    """Removed blocks are not found, nor the blocks below them while they are missing.

    After `remove_blocks` a search ends before the first removed block, even if the worker has all later
    blocks. Blocks may be removed in any order, from the end of a sequence or from inside.

    The worker's blocks below a removed block are **cut off**. An index may forget all or some of them. When
    the removed block is stored again, the count of a search is

    - at least the leading blocks that were never cut off, or were stored again since, or were reported by a
      search since;
    - at most the leading blocks that the worker has, by its events.

    Once a search has reported a block as present or absent, later searches report the same until an event of
    its worker. With the claim `exact_removals` an index forgets nothing (I6).

    Why
    ---
    A block is useful only with all blocks before it. Reporting less than a worker has costs a computation;
    reporting more sends the request to a server that must compute blocks that another server has. So an index
    may report less where events leave a doubt, but never more.

    Choices
    -------
    The treatment of blocks that are cut off, as long as no removed block is reported.

    Caller
    ------
    To remove blocks that are cut off, too, when they are evicted; and to store the following blocks again if
    a search should find them.

    Engines
    -------
    - dynamo 1.6.1 forgets the rest of a compressed edge, and keeps the blocks in other nodes while another
      worker has the removed block (`radix_tree.rs`, `apply_removed`, with a comment of its authors): within
      these bounds ([finding](../../peers/findings/dynamo/cut-off-blocks-come-back-or-not.md)).
    - vLLM evicts the end of a chain first, but any block is freed when its last reference is released.
    - A search of llm-d continued after a missing block ([pull request
      688](https://github.com/llm-d/llm-d-kv-cache/pull/688)); one of aibrix does
      ([finding](../../peers/findings/aibrix/a-search-goes-on-behind-a-gap.md)).
    """


@law("I6", page=_PAGE, ways="op", kinds="index", needs="exact_removals")
def what_was_cut_off_is_found_again(before: IndexModel, operation: object, seen: Seen) -> Found:
    """Blocks that were cut off are found again when the gap is closed.

    An index that claims `exact_removals` follows its events exactly. Its count is the upper bound of I5: when
    a removed block is stored again, the blocks below it that were not removed are reported at once. A store
    below a block that is cut off is carried out. A removal of a block that is cut off answers `done`, and the
    block is absent when the gap is closed.

    Why
    ---
    A server that evicts one block of a sequence and computes it again has the whole sequence, and reports
    this with one event. And if a hidden entry outlives a removal, the index later reports a block that the
    worker lost long ago.

    Choices
    -------
    None.

    Caller
    ------
    To remove also blocks that are cut off when they are evicted; otherwise they are found again.

    Engines
    -------
    - dynamo 1.6.1: different, see I5.
    - llm-d: the same, since it looks blocks up one by one.
    """


@law("I7", page=_PAGE, ways="op", kinds="index")
def who_is_cleared_has_nothing(before: IndexModel, operation: object, seen: Seen) -> Found:
    """A worker that is cleared or dropped has nothing.

    After `clear_worker` and after `drop_worker` no search names the worker, wherever its blocks were, at the
    front of sequences or cut off. From then on the worker has only the blocks that it stores: no earlier
    block comes back with them. Both answer `done`, also for an unknown worker.

    Why
    ---
    A server that was restarted, or has new weights, has an empty cache. If its entries stay, every earlier
    prompt is sent to the one server that must compute all of it. This happened in indexes that only logged
    the event, or left a removed worker to an eviction that never came.

    Choices
    -------
    The data kept about a worker without blocks.

    Caller
    ------
    To drop a worker that is gone: an index knows nothing but events.

    Engines
    -------
    - dynamo 1.6.1: the event `cleared`, `clear_all_blocks` and `remove_worker` (`radix_tree.rs`): the same.
      The latter two are for all ranks of a worker, which here are workers of their own.
    - llm-d 7be76e1 and aibrix e3e10f9: `Clear`, `RemovePrefix`: the same. llm-d had logged the event and done
      nothing ([pull request 593](https://github.com/llm-d/llm-d-kv-cache/pull/593)).
    """


@law("I8", FindBlocks, page=_PAGE, ways="op", kinds="index", needs="early_exit")
def an_early_answer_names_the_best(before: IndexModel, operation: FindBlocks, seen: SeenSearch) -> Found:
    """An early answer names the same workers, and the best of them.

    With `early` a search may end as soon as one worker is left. It names the same workers as without `early`,
    none with more blocks than it has, and none without any. The worker that is named with the most blocks
    must have at least as many as any other.

    Why
    ---
    A router that only chooses a server needs no count. But an answer that ends too early contains a false
    tie, and half of the requests go to a worker with one block of a thousand.

    Choices
    -------
    Where the search ends, and whether it ends early at all.

    Caller
    ------
    Not to use the counts as those of I1.

    Engines
    -------
    - dynamo 1.6.1: `early_exit` of `find_matches`; ends at the first node that only one worker has: the
      same.
    """
    if not operation.early:
        return None
    for worker, count in _counts_of(seen):
        least, most = seen.bounds.get(worker, _NOTHING)
        if not min(least, 1) <= count <= most:
            return Broken(f"blocks of worker {worker}, told early", f"up to {most}", count)
    told = max(seen.told.values(), default=0)
    best = max((least for least, _ in seen.bounds.values()), default=0)
    for worker in [worker for worker, count in seen.told.items() if count == told]:
        most = seen.bounds[worker].most
        if most < best:
            return Broken(f"blocks of worker {worker}, told as the best", f"{best} or more", most)
    return True


@law("I9", Inspect, page=_PAGE, ways="op", kinds="index", needs="inspect")
def what_is_shown_is_what_is_there(before: IndexModel, operation: Inspect, seen: Seen) -> Found:
    """The shown blocks are the stored ones, and an index built from them answers the same.

    `inspect` answers `indexed`: for each block of each worker its hash, the hash of its tokens and the hash
    of its parent, `null` for a first block. It shows each block of a worker once, and no other, with its
    group, its medium, its namespace and its copies, as far as the index claims to know them. Blocks that are
    cut off may be left out (I5), unless `exact_removals` is claimed. With the claim `event_numbers` it also
    shows each worker's last number.

    `rebuild` makes a new index from the content that this one shows, and continues with it. Every search
    gives the same answer as before, and numbers continue. Blocks that were cut off may be lost (I5), unless
    they were reported since.

    Why
    ---
    A new router asks another router, or the server's own index, for all blocks. A block left out of a dump is
    never reported again, because events come once; a block shown without a worker is never removed. A dump
    whose entries had numbers of their own set the index back behind its server, and each later event was
    taken for a gap ([pull request 7072](https://github.com/ai-dynamo/dynamo/pull/7072) of dynamo).

    Choices
    -------
    The order of blocks, and the number of events.

    Caller
    ------
    Nothing.

    Engines
    -------
    - dynamo 1.6.1: `dump_tree_as_events`, whose events may be applied in order (`radix_tree.rs`). A worker's
      blocks below a block that it has lost are dumped with a parent that cannot be found then.
    """
    shown, expected = seen.result.blocks, dict(before.expected())
    plain = [block if block.copies == 1 else replace(block, copies=1) for block in shown]
    told = {*plain}
    if len(plain) != len(told):
        return Broken("blocks shown", "each once", sorted(map(repr, shown)))
    for block, known in zip(shown, plain, strict=True):
        if known not in expected:
            return Broken(_name(block), "as it was stored, or not", block, before.law_of_shown(block))
        least, most = expected[known]
        if not least <= block.copies <= most:
            right = least if least == most else f"{least} to {most}"
            return Broken(f"copies of {_name(block)}", right, block.copies, before.law_of_copies(block))
    for block, copies in expected.items():
        if copies.least and block not in told:
            return Broken(_name(block), block, "not shown", before.law_of_shown(block))
    if "event_numbers" in before.claims and seen.result.numbers != before.numbers():
        return Broken("workers with the numbers of their last events", before.numbers(), seen.result.numbers)
    return before.tested_by_look(shown)


def _name(block: IndexedBlock) -> str:
    return f"block {block.hash} of worker {block.worker}"


@law("I10", page=_PAGE, ways="op", kinds="index", needs="counts_copies")
def a_removal_takes_one_copy(before: IndexModel, operation: object, seen: Seen) -> Found:
    """A removal takes one copy of each block that it names.

    An index that claims `counts_copies` counts: each `store_blocks` that names a block adds a copy, each
    `remove_blocks` removes one copy each time that it names the hash. The worker has the block as long as a
    copy is left, in any medium. A removal of more copies than exist removes all, and counts as a removal of a
    missing block (I4). If blocks that are cut off may be forgotten (I5), so may their copies.

    Without the claim one removal takes all copies in its medium.

    Why
    ---
    Two requests that compute the same block at the same time make two copies, and each copy is stored and
    removed separately. An index of sets loses the block with the first removed copy: where the server hits 96
    tokens, the index answers 64. An index that counts, with a stream that reports only the last removal,
    keeps the block for ever. So the claim must fit the stream; `pymllm watch --removal` judges the stream
    (W5).

    Choices
    -------
    Whether it counts, which is the claim. Where it counts: in the index, or in a filter before the index.

    Caller
    ------
    To send each event once, or with numbers (I14).

    Engines
    -------
    - dynamo counts in a filter before the index, `EventDedupFilter` ([pull request
      8012](https://github.com/ai-dynamo/dynamo/pull/8012)); its `RadixTree` removes all copies.
      - llm-d 7be76e1: a removal takes all copies of its tier (`pkg/kvevents/pool.go`). A filter like dynamo's
        came with [pull request 680](https://github.com/llm-d/llm-d-kv-cache/pull/680).
      - aibrix e3e10f9: a removal takes all copies (`sync_hash.go`, `ProcessBlockRemoved`).
    - vLLM 0.32 reports the removal of each copy (I4): a stream for an index that counts.
    """


@law("I11", page=_PAGE, ways="op", kinds="index", needs="layer_groups")
def groups_are_kept_apart(before: IndexModel, operation: object, seen: Seen) -> Found:
    """An event of one group of layers changes nothing in another.

    Blocks of several groups have the same hashes. With `layer_groups` each event belongs to one `group`, and
    a search covers one group: its leading blocks are those that the worker has in that group. A parent must
    be present in the event's group (I3). `clear_worker` and `drop_worker` apply to all groups.

    Why
    ---
    A model with sliding windows frees the blocks of its window while those of full attention stay, and
    reports both under the same hash. An index that ignores the group takes the removal for that of the whole
    block, and a window's few blocks for the sequence.

    Choices
    -------
    Whether it has groups. An index without groups must get the events of one group only.

    Caller
    ------
    To know the meaning of a group's leading blocks: a window needs only the last blocks. To leave out events
    whose tokens do not fit their hashes ([issue 44451](https://github.com/vllm-project/vllm/issues/44451),
    law W2).

    Engines
    -------
    - dynamo filters events before the index, and takes only full attention ([pull request
      8751](https://github.com/ai-dynamo/dynamo/pull/8751)); its index has no groups.
    - llm-d 7be76e1: an entry has its group and a removal affects that group, but a search accepts a block in
      any group (`pkg/kvcache/kvblock_scorer.go`, `fillMaxWeights`; [issue
      2362](https://github.com/llm-d/llm-d-router/issues/2362)). Later it takes only full attention ([pull
      request 2363](https://github.com/llm-d/llm-d-router/pull/2363)).
    - aibrix e3e10f9: events have no group (`events.go`).
    - vLLM sends `group_idx` and the kind of the group ([pull request
      40984](https://github.com/vllm-project/vllm/pull/40984)).
    """


@law("I12", page=_PAGE, ways="op", kinds="index", needs="media")
def media_are_kept_apart(before: IndexModel, operation: object, seen: Seen) -> Found:
    """A block that leaves one memory stays in another.

    With `media` each event belongs to one `medium`. The worker has a block of a group if the block is in any
    medium; a removal takes the block, or a copy of it (I10), from the medium of the event, and skips blocks
    that are only in another medium (I4). `inspect` shows each medium separately. A parent may be in any
    medium.

    Why
    ---
    A server that moves blocks from a GPU to the host sends two events: a store in the new medium and a
    removal from the old medium. If an index takes the second event for the removal of the block, the router
    sends the request elsewhere, and the stored block is never used.

    Choices
    -------
    Whether it has media, and the value of a block in a slower medium.

    Caller
    ------
    To name the medium of a removal.

    Engines
    -------
    - llm-d 7be76e1: an entry has the pod and the tier of its device, and a removal names both
      (`pkg/kvevents/pool.go`, `processEventBatch`): the same. A slower tier counts less.
    - dynamo has an index for each lower tier beside the tree
      ([pull request 8380](https://github.com/ai-dynamo/dynamo/pull/8380)).
    - aibrix e3e10f9: events have no medium (`events.go`).
    - vLLM reports blocks on their way to another memory without their tokens, and more since
      [pull request 43468](https://github.com/vllm-project/vllm/pull/43468).
    """


@law("I13", page=_PAGE, ways="op", kinds="index", needs="extra_key|lora")
def namespaces_are_kept_apart(before: IndexModel, operation: object, seen: Seen) -> Found:
    """A sequence of one namespace is not found in another.

    `extra_key` is a namespace as in keys of prefix caches (K2): with the claim `extra_key` its first value
    counts, with `lora` its second, the name of an adapter. The same tokens in two namespaces are two
    sequences with two hashes, and a search reports blocks of its own namespace.

    Why
    ---
    KV depends on the adapter, and a salt separates tenants. An index that compares tokens alone answers one
    tenant with the other's prefix: the request goes to a server without its blocks, and its duration reveals
    the prompts of others.

    Choices
    -------
    Whether the namespace is in the hash of the tokens already; then the index needs no claim.

    Caller
    ------
    To pass the namespace of a sequence with each part of the sequence.

    Engines
    -------
    - vLLM sends `extra_keys` for each block, a salt with the first block only.
    - sglang's events did not contain the salt
      ([issue 27682](https://github.com/sgl-project/sglang/issues/27682)); since
      [pull request 30827](https://github.com/sgl-project/sglang/pull/30827) they do.
    - llm-d 7be76e1: the name of an adapter replaces the name of the model (`pkg/kvevents/pool.go`). Every
      text among a block's keys counts as an image's hash, also a salt (`extra_keys.go`, `ParseRawExtraKeys`).
    - aibrix e3e10f9: a table for each model and adapter.
    - dynamo 1.6.1: the code that computes the hashes of tokens includes them.
    """


@law("I14", page=_PAGE, ways="op", kinds="index", needs="event_numbers")
def a_number_counts_once(before: IndexModel, operation: object, seen: Seen) -> Found:
    """An event with a number that was told before changes nothing.

    With `event_numbers` an event may have a `number`, which counts up by one in each worker's stream. The
    first event of a worker is accepted with any number. A later event whose number is not above the last, and
    not 0 (I16), is a repetition: the answer is `done` or `not_there`, and nothing changes, not even a count
    of copies. Events without a number change no numbers. `drop_worker` and `reset` forget a worker's number;
    `clear_worker` and `rebuild` do not (I9).

    Why
    ---
    A subscriber that requests missed events gets some events twice. A repeated removal after a new store
    removes a present block; a store that is counted twice keeps a removed block.

    Choices
    -------
    None.

    Caller
    ------
    To number the events of each worker, and to send no event that is refused: a refused event has no number
    (X1).

    Engines
    -------
    - llm-d drops events not above the last number
      ([pull request 1887](https://github.com/llm-d/llm-d-router/pull/1887)).
    - dynamo drops them before the index ([pull request 7072](https://github.com/ai-dynamo/dynamo/pull/7072));
      `RadixTree` ignores numbers.
    - vLLM and sglang number messages, and replay them
      ([sglang#32729](https://github.com/sgl-project/sglang/pull/32729) is a client of this replay).
    """


def _demand_passed_over(before: IndexModel, operation: Event, seen: SeenEvent) -> Found:
    return _is_done_or_not_there(seen)


a_number_counts_once.on(StoreBlocks, RemoveBlocks, ClearWorker, fate=REPEATED)(_demand_passed_over)


@law("I15", page=_PAGE, ways="op", kinds="index", needs="event_numbers")
def a_gap_is_told(before: IndexModel, operation: object, seen: Seen) -> Found:
    """An event before which another one is missing is not taken.

    If the number of an event is above the last by more than one, the answer is `missed`, with the number that
    must come next, and nothing changes. The same event is accepted once all events before it have come.

    Why
    ---
    A lost removal leaves a removed block in the index, a lost store cuts off later blocks, and a subscriber
    that ignores numbers never notices either ([issue 1737](https://github.com/llm-d/llm-d-router/issues/1737)
    of llm-d). Missed events can be requested once the first missing number is known.

    Choices
    -------
    None.

    Caller
    ------
    To send the missed events, from the answered number on, or to restart with 0 (I16), as a snapshot could
    ([issue 40363](https://github.com/vllm-project/vllm/issues/40363) of vLLM asks for a snapshot).

    Engines
    -------
    - llm-d asks for a replay from the last number on
      ([pull request 1887](https://github.com/llm-d/llm-d-router/pull/1887)).
    - dynamo asks the worker for its events, or for a dump of its tree
      ([pull request 7072](https://github.com/ai-dynamo/dynamo/pull/7072)).
    - aibrix e3e10f9: events have no number in its index (`events.go`).
    """


@a_gap_is_told.on(StoreBlocks, RemoveBlocks, ClearWorker, fate=EARLY)
def _what_is_missing_is_named(before: IndexModel, operation: Event, seen: SeenEvent) -> Found:
    return same("what becomes of an event behind a gap", Missed(seen.next), seen.result)


@law("I16", page=_PAGE, ways="op", kinds="index", needs="event_numbers")
def number_0_begins_anew(before: IndexModel, operation: object, seen: Seen) -> Found:
    """An event with the number 0 begins its worker's stream anew.

    If a worker's events have numbers already, an event with the number 0 first removes all blocks of the
    worker, in all groups and media, and is then carried out. After a repeated stream the index contains its
    blocks, and nothing else.

    Why
    ---
    A restarted server has an empty cache, and counts from 0. If an index takes these events for repetitions,
    it ignores the server until the numbers exceed the old number; an index that ignores the numbers keeps the
    blocks of the old server ([issue 2853](https://github.com/llm-d/llm-d-router/issues/2853) of llm-d).

    Choices
    -------
    None.

    Caller
    ------
    To number from 0 on.

    Engines
    -------
    - llm-d takes any number below the last live number for a restart ([pull request
      1887](https://github.com/llm-d/llm-d-router/pull/1887)), where replays are on.
    - vLLM counts from 0, also after a restart.
    """


@a_look_changes_nothing.on(FindBlocks, kinds="index")
def _a_search_tells_the_same_again(before: IndexModel, operation: FindBlocks, seen: SeenSearch) -> Found:
    if operation not in before.answers:
        return None
    return same("the same search again", before.answers[operation], seen.result)


# -- coverage goals ------------------------------------------------------------------------------------------

_goals = partial(make_goals, "index")

GOALS = (
    *_goals(
        ("several workers have different parts of a sequence", "I1 I2"),
        ("blocks are stored below a parent that is not there", "I3"),
        ("blocks are stored below a block that is cut off", "I3"),
        ("a block is stored again", "I4"),
        ("a block is removed that is not there", "I4"),
        ("an inner block is removed", "I5"),
        ("a block is removed that is cut off", "I5"),
        ("a gap is closed", "I5"),
        ("a worker with blocks is cleared", "I7"),
        ("a worker with blocks is dropped", "I7"),
        ("a reset takes blocks from workers", "X7"),
    ),
    *_goals(
        ("blocks are stored that another worker has", "I2"),
        when=(Condition("hashes of all workers", lambda config: config.get("own_hashes") is not True),),
    ),
    *_goals(("an early answer is short", "I8"), needs="early_exit"),
    *_goals(
        ("a copy of a block is removed, and another is left", "I10"),
        needs="counts_copies",
    ),
    *_goals(("a block is removed that another group has", "I11"), needs="layer_groups"),
    *_goals(
        ("a block is removed that lies in another medium", "I12"),
        ("a block is removed from a medium in which it is not", "I12"),
        needs="media",
    ),
    *_goals(("tokens are stored that another namespace has", "I13"), needs="extra_key"),
    *_goals(("tokens are stored that another adapter's namespace has", "I13"), needs="lora"),
    *_goals(
        ("an event is told again", "I14"),
        ("an event is told again in an index that was built anew", "I9 I14"),
        ("an event is missing before another", "I15"),
        ("a worker with blocks begins anew", "I16"),
        needs="event_numbers",
    ),
    *_goals(("an index with a gap is built again", "I9"), needs="inspect"),
    *_goals(
        ("a block that is its own parent is refused", "X1"),
        ("a hash that is stored twice in one event is refused", "X1"),
        needs="refuses_bad_arguments",
    ),
    *_goals(("a malformed call is refused", "X1"), needs="refuses_malformed"),
)
"""Coverage goals that a search for violations must reach on indexes."""


def _met_by_store(before: IndexModel, operation: StoreBlocks, seen: SeenStore) -> Met:
    worker, parent, group = operation.worker, operation.parent, operation.group
    others = [known for number, known in before.workers.items() if number != worker]
    return {
        "blocks are stored that another worker has": any(
            known.is_sure(hash, group) for known in others for hash in seen.fresh
        ),
        "blocks are stored below a block that is cut off": parent is not None
        and before.is_cut_off(worker, parent, group),
        "a block is stored again": len(seen.fresh) < len(operation.blocks),
        "a gap is closed": seen.is_joined,
        **_met_by_turn(before, operation, seen),
        **_met_by_namespace(before, operation),
    }


def _met_by_namespace(before: IndexModel, operation: StoreBlocks) -> Met:
    own = values_of(operation.extra_key)
    others = {
        values_of(namespace)
        for namespace in before.namespaces_with(operation.worker, operation.blocks)
        if operation.parent is None and namespace != operation.extra_key
    }
    return {
        "tokens are stored that another namespace has": any(it[0] != own[0] for it in others),
        "tokens are stored that another adapter's namespace has": any(it[1] != own[1] for it in others),
    }


def _met_by_orphan(before: IndexModel, operation: StoreBlocks, seen: SeenStore) -> Met:
    is_cut_off = operation.parent is not None and before.has(
        operation.worker, operation.parent, operation.group
    )
    return {
        "blocks are stored below a parent that is not there": not is_cut_off,
        "blocks are stored below a block that is cut off": is_cut_off,
        **_met_by_turn(before, operation, seen),
    }


def _met_by_removal(before: IndexModel, operation: RemoveBlocks, seen: SeenRemoval) -> Met:
    worker, group = operation.worker, operation.group
    there = {*seen.there}
    groups = {room.group for room in before.workers[worker].rooms} if worker in before.workers else set()
    return {
        "a block is removed that is not there": len(seen.there) < len(operation.hashes),
        "an inner block is removed": seen.is_inner,
        "a block is removed that is cut off": any(before.is_cut_off(worker, hash, group) for hash in there),
        "a copy of a block is removed, and another is left": seen.left,
        "a block is removed that another group has": any(
            before.has(worker, hash, other) for hash in there for other in groups - {group}
        ),
        "a block is removed that lies in another medium": there.intersection(seen.elsewhere),
        "a block is removed from a medium in which it is not": {*seen.elsewhere} - there,
        **_met_by_turn(before, operation, seen),
    }


def _has_blocks(before: IndexModel, worker: int) -> bool:
    known = before.workers.get(worker)
    return known is not None and known.has_blocks


def _met_by_clear(before: IndexModel, operation: ClearWorker, seen: SeenEvent) -> Met:
    has_blocks = _has_blocks(before, operation.worker)
    return {"a worker with blocks is cleared": has_blocks, **_met_by_turn(before, operation, seen)}


def _met_by_turn(before: IndexModel, operation: Event, seen: SeenEvent) -> Met:
    return {"a worker with blocks begins anew": seen.is_anew and _has_blocks(before, operation.worker)}


def _met_by_repeated(before: IndexModel, operation: Event, seen: SeenEvent) -> Met:
    is_rebuilt = before.law_of(operation.worker) == "I9"
    return {
        "an event is told again": True,
        "an event is told again in an index that was built anew": is_rebuilt,
    }


def _met_by_early(before: IndexModel, operation: Event, seen: SeenEvent) -> Met:
    return {"an event is missing before another": True}


def _met_by_drop(before: IndexModel, operation: DropWorker, seen: Seen) -> Met:
    return {"a worker with blocks is dropped": _has_blocks(before, operation.worker)}


def _met_by_reset(before: IndexModel, operation: Reset, seen: Seen) -> Met:
    has_blocks = any(_has_blocks(before, worker) for worker in before.workers)
    return {"a reset takes blocks from workers": has_blocks}


def _met_by_search(before: IndexModel, operation: FindBlocks, seen: SeenSearch) -> Met:
    counts = {*seen.told.values()}
    is_short = any(count < seen.bounds[worker].least for worker, count in seen.told.items())
    if operation.early:
        return {"an early answer is short": is_short}
    return {"several workers have different parts of a sequence": len(counts) > 1}


def _met_by_rebuild(before: IndexModel, operation: Rebuild, seen: Seen) -> Met:
    cut_off = (
        block for block, _ in before.expected() if before.is_cut_off(block.worker, block.hash, block.group)
    )
    return {"an index with a gap is built again": next(cut_off, None)}


INDEX = KindLaws(
    order="X8 I8 I1 I9",
    asked={
        StoreBlocks: Asked(Done, "I1"),
        RemoveBlocks: Asked(Done, "I5"),
        ClearWorker: Asked(Done, "I7"),
        DropWorker: Asked(Done, "I7"),
        FindBlocks: Asked(Leading, "I1"),
        Rebuild: Asked(Done, "I9"),
        Inspect: Asked(Indexed, "I9"),
        Reset: Asked(Done, "X7"),
    },
    sizes_law="I1",
    met={
        (StoreBlocks, DONE): _met_by_store,
        (StoreBlocks, ORPHANED): _met_by_orphan,
        (RemoveBlocks, DONE): _met_by_removal,
        (RemoveBlocks, MISSING): _met_by_removal,
        (ClearWorker, DONE): _met_by_clear,
        (DropWorker, DONE): _met_by_drop,
        (Reset, DONE): _met_by_reset,
        (FindBlocks, DONE): _met_by_search,
        (Rebuild, DONE): _met_by_rebuild,
        **{(event, REPEATED): _met_by_repeated for event in (StoreBlocks, RemoveBlocks, ClearWorker)},
        **{(event, EARLY): _met_by_early for event in (StoreBlocks, RemoveBlocks, ClearWorker)},
    },
    counts_all=False,
)
