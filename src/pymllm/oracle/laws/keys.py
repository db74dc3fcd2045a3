"""Laws of cache keys, and of the hashes of their pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from pymllm.history.operations import (
    KEY_FORMS,
    Hash,
    HashBytes,
    HashInt64,
    HashPage,
    Insert,
    Inspect,
    Key,
    Match,
    Operation,
    PickToken,
    SliceKey,
)
from pymllm.history.outcomes import Hashes, Number, Tokens
from pymllm.oracle.laws.goal import Met, make_goals
from pymllm.oracle.laws.law import Asked, Broken, Found, KindLaws, law, same
from pymllm.oracle.models.cold_runs import hash_pages
from pymllm.oracle.models.hashes import TOKENS, HashModel, SeenAnswer
from pymllm.oracle.models.kind_model import DONE
from pymllm.oracle.models.prefix import CacheModel
from pymllm.oracle.models.prefix_model import Path, Space
from pymllm.oracle.models.prefix_seen import GARBLED, SeenInsert, SeenMatch, SeenNode
from pymllm.oracle.models.shown_nodes import SeenLook


@law(
    "K1",
    SliceKey,
    PickToken,
    page="keys-and-hashes",
    ways="sop",
    kinds="hashes prefix",
    needs_in={"prefix": "extra_key|bigrams|forms"},
)
def namespaces_never_meet(before: HashModel, operation: SliceKey | PickToken, seen: SeenAnswer) -> Found:
    """Keys of other namespaces or widths never meet; containers do not matter.

    Two keys have something in common only if they are of the **same namespace and the same width**. Then they
    share the longest sequence of tokens that both begin with; otherwise they share nothing, whatever their
    tokens are. For a key of one namespace and width, a cache may never return, split, refresh or evict pages
    of another. Namespaces are equal if both are none, or both strings of the same characters, or both
    integers of the same value. `"1"` and `1` are different; `""` and `0` are namespaces, and not none; for
    several values see K2. A namespace is not normalised: case, blanks and accents count. Width is the number
    of integers of a token. An empty key begins every key, and ends at the root, which all keys share.

    With the claim `refusals`, these are **no keys** and refused (X1): tokens that are not integers (a boolean
    is not an integer), or outside 0 to 2<sup>32</sup> - 1; tuples of different lengths, of one integer or of
    none, and tuples beside integers; an array of two dimensions, which might be a batch; a namespace that is
    a float or a boolean, or a tuple with other values than strings, integers and null.

    **Containers do not matter.** A key may be passed as a list, a tuple, a packed array of unsigned integers,
    an array or a tensor of any integer dtype. In all of these containers, equal tokens are the same key: for
    matches, for hashes, and for the answers below. No cache changes the container, or keeps it (X5).

    **Parts.** Both operations answer `tokens`, with the tokens and the namespace of a new key.

    - `slice_key`: the tokens from `start` to `stop` - 1 as Python slices them. Null for `start` is the
      beginning, for `stop` the end. A negative number counts from the end: -1 is the last token. Bounds
      outside the key are cut, so no slice is an error: `[5:9]` of three tokens is an empty key, and so is
      `[2:1]`. The namespace stays, also for an empty part.
      - `pick_token`: a key of the single token at place `at`, in the same namespace. With *n* tokens `at` is
        from -*n* to *n* - 1; any other number, and every number where the key is empty, is an `IndexError`.

    Why
    ---
    A namespace stands for everything except the tokens that changes KV: an adapter, an image, a tenant. If
    the namespace is lost, one user reads another's answers. Engines have left it out of the comparison, have
    put a tenant's salt into the same field as the name of an adapter, and have matched a prompt with another
    image because both had the same placeholders.

    Choices
    -------
    How namespaces are kept apart: a root for each, a part of each key, or of each hash (H3).

    Caller
    ------
    To put everything that its KV depends on into the namespace, so that two different things never get one
    name, and in text that UTF-8 can encode. A string with one half of a surrogate pair is not such text: it
    cannot be hashed (H3) or stored in our files, and a program with such a string gets no verdict.

    Engines
    -------
    - sglang: `extra_key`, a string, and a salt beside it (`sglang/srt/mem_cache/radix_cache.py`, `RadixKey`).
      Bigrams are a view over plain tokens, keys are arrays. Slices have step 1; a place outside is an
      `IndexError`: the same.
    - vLLM: no keys; adapter, images and salt are hashed with the tokens of each block
      (`vllm/v1/core/kv_cache_utils.py`, `generate_block_hash_extra_keys`).
    - Megatron Core 0.16.1: not applicable, no prefix cache.
    """
    return _is_answered(operation, seen)


@namespaces_never_meet.on(Match, kinds="prefix")
def _a_match_keeps_to_its_namespace(before: CacheModel, operation: Match, seen: SeenMatch) -> Found:
    found, told = seen.found, len(seen.result.slots)
    is_elsewhere = bool(seen.elsewhere) or (told > found.stored and bool(before.other_spaces(seen.key, told)))
    if is_elsewhere and told != len(found.slots):
        return Broken(f"slots that match {seen.key.tokens}", len(found.slots), told)
    is_other_form = operation.key.form != "list" and (found.slots or not before.retains)
    return is_elsewhere or bool(is_other_form) or None


@namespaces_never_meet.on(Insert, kinds="prefix")
def _an_insert_keeps_to_its_namespace(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    told = seen.result.prefix_len
    if told > seen.plan.prefix_len and before.other_spaces(seen.key, told):
        return Broken("tokens of another namespace that an insert finds", "none", told)
    return None


@namespaces_never_meet.on(Inspect, fate=GARBLED, kinds="prefix")
def _a_node_is_below_its_namespace(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    if seen.astray is None:
        return None
    node, above, space = seen.astray
    return Broken(f"namespace and width of node {node}", tuple(above), space)


@namespaces_never_meet.on(Inspect, kinds="prefix")
def _pages_stay_in_their_namespaces(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    """Find a page that has moved to another namespace or token width instead of being lost."""
    strangers = {path.tokens: path.space for path in seen.strangers}
    for path in seen.lost[:1]:
        if path.tokens in strangers:
            return Broken(f"space of page {path.tokens}", tuple(path.space), tuple(strangers[path.tokens]))
    return None


@law(
    "K2",
    SliceKey,
    PickToken,
    page="keys-and-hashes",
    ways="op",
    kinds="hashes prefix",
    needs="lora|lora_version|embeddings|weights",
)
def values_keep_to_their_dimensions(
    before: HashModel, operation: SliceKey | PickToken, seen: SeenAnswer
) -> Found:
    """Keys share only if they agree in every dimension, and no dimension stands for another.

    A namespace may have several **dimensions**, each with a value of its own. They are claimed one by one,
    and have an order:

    | place | claim | value |
    | --- | --- | --- |
    | 1 | `extra_key` | a salt, a tenant, or all that has no dimension of its own |
    | 2 | `lora` | the name of a LoRA adapter |
    | 3 | `lora_version` | the version of that adapter: it may be reloaded under the same name |
    | 4 | `embeddings` | inputs that replace tokens: embeddings, images, sound, by hash |
    | 5 | `weights` | the version of the model's weights: they may be updated while the cache is kept |

    Each value is a string or an integer, or is **missing**. Two namespaces are equal if and only if at each
    place both values are missing, or both are equal strings, or both are equal integers. So:

    - Keys that differ in a single dimension, whichever it is, never share anything (K1).
    - Keys that agree in all dimensions share prefixes like any other keys (R2, R3).
    - Values are not joined: `("a", "bc")` is not `("ab", "c")`.
    - Dimensions are not exchanged: salt `"a"` with adapter `"b"` is not salt `"b"` with adapter `"a"`, and
      a salt `"a"` without an adapter is not an adapter `"a"` without a salt.
    - Missing is not empty: null is neither `""` nor `0`.

    A namespace is written as a list of its values in this order, with null for missing values, up to the last
    present value. A namespace with at most the first value is written without a list, as before: `"a"`, or
    null. So each namespace is written in one way only; a program with another form gets no verdict. Parts
    (K1) keep all values. An implementation that claims some dimensions never gets values of others.

    Why
    ---
    A cache whose keys leave a dimension out answers with KV of another adapter, of another image, or of old
    weights, without an error: these even count as hits. Where values of two dimensions were put into one list
    without a label, a tenant whose salt was an adapter's name read that adapter's KV; in one joined string,
    two different pairs can give the same text. Requests to an adapter that was reloaded under its old name
    were answered from the KV of the old version.

    Choices
    -------
    How values are kept apart: in the key, in a hash, or by a cache for each. Whether a dimension that it does
    not claim is served by emptying the cache, as when weights are updated.

    Caller
    ------
    To give each dimension the value that KV depends on, and a new value when the named object has changed.

    Engines
    -------
    - sglang 0.5.23: `extra_key` and `cache_salt` are two fields of a key (`srt/mem_cache/radix_cache.py`,
      `RadixKey.child_key_at`). The id of an adapter is appended to `extra_key` with nothing between
      (`srt/managers/schedule_batch.py`, `Req.__init__`), so the cache sees one string for the two. Weights
      have no version: a caller that loads other weights flushes the cache.
    - vLLM 0.33.0: name and path of the adapter, images, embeddings and salt, each with a label
      (`v1/core/kv_cache_utils.py`, `generate_block_hash_extra_keys`). Weights have no version here, either.
    - Megatron Core 0.16.1: not applicable, no prefix cache.
    """
    if not isinstance(operation.key.extra_key, tuple):
        return None
    return same(f"namespace of {operation}", operation.key.extra_key, seen.result.extra_key)


@values_keep_to_their_dimensions.on(Match, kinds="prefix")
def _a_match_keeps_to_its_values(before: CacheModel, operation: Match, seen: SeenMatch) -> Found:
    found, told, key = len(seen.found.slots), len(seen.result.slots), seen.key
    others = [*seen.elsewhere, *(before.other_spaces(key, told) if told > seen.found.stored else ())]
    strangers = of_other_values(key.space, others)
    if strangers and told != found:
        names = f"{strangers[0].extra_key!r} for {key.space.extra_key!r}"
        return Broken(f"slots of {names} that match {key.tokens}", found, told)
    is_shared = isinstance(key.space.extra_key, tuple) and (found > 0 or not before.retains)
    return len(strangers) > 0 or is_shared or None


@values_keep_to_their_dimensions.on(Insert, kinds="prefix")
def _an_insert_keeps_to_its_values(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    told, key = seen.result.prefix_len, seen.key
    others = before.other_spaces(key, told) if told > seen.plan.prefix_len else ()
    for other in of_other_values(key.space, others):
        names = f"{other.extra_key!r} that an insert of {key.space.extra_key!r}"
        return Broken(f"tokens of {names} finds", 0, told)
    return None


@values_keep_to_their_dimensions.on(Inspect, kinds="prefix")
def _pages_keep_their_values(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    """Find a page that has moved to other values of its namespace instead of being lost."""
    for path in seen.lost[:1]:
        shown = [other.space for other in seen.strangers if other.tokens == path.tokens]
        for other in of_other_values(path.space, shown):
            return Broken(f"namespace of page {path.tokens}", path.space.extra_key, other.extra_key)
    return None


def of_other_values(space: Space, others: Iterable[Space]) -> list[Space]:
    """Return the namespaces of equal token width that differ from one, if either has several values."""
    return [
        other
        for other in others
        if other.width == space.width
        and other.extra_key != space.extra_key
        and (isinstance(space.extra_key, tuple) or isinstance(other.extra_key, tuple))
    ]


@law("H1", HashPage, HashInt64, HashBytes, page="keys-and-hashes", ways="op", kinds="hashes")
def hashes_are_as_documented(
    before: HashModel, operation: HashPage | HashInt64 | HashBytes, seen: SeenAnswer
) -> Found:
    """Hash functions as documented.

    `hash_page` hashes the tokens of one page after the hash of the page before it:

    > digest = SHA-256(prior bytes, then each integer of each token as 4 bytes)

    - **Tokens.** Each integer is 4 bytes, unsigned, the least significant byte first. A tuple gives its
      integers one after the other. There is no separator between tokens or integers, no length, and no mark
      of the width. The namespace of the key is not used: it is in the first prior (H3).
    - **Prior.** 64 hexadecimal digits stand for 32 bytes; these bytes, and not the digits, come first. Digits
      may be upper or lower case. Null is no bytes. A text that is not a sequence of whole bytes in
      hexadecimal digits is refused with any error of X1; other numbers of digits than 64 are not tested.
    - **Answer.** `hashes` with one digest: 64 hexadecimal digits, lower case. The digest of an empty page
      without a prior is the SHA-256 of nothing, `e3b0c442...`.
    - **Out of range.** An integer below 0 or above 2<sup>32</sup> - 1 is a `ValueError`, never cut to 32
      bits. Tuples of several lengths, and tuples of one integer, are refused with any error of X1.

    `hash_int64` reads the first 16 digits of `digest`, its first 8 bytes, as a **signed** integer of 64 bits,
    the most significant byte first. From `8000000000000000` on it is negative: the unsigned number minus
    2<sup>64</sup>. Digits after the 16th are ignored. Fewer than 16 digits, or any character that is no
    hexadecimal digit (`0x`, a blank, a sign), are refused with any error of X1.

    `hash_bytes` takes bytes, written in `data` as hexadecimal digits, and answers with the first 8 bytes of
    their SHA-256 as an **unsigned** integer, the most significant byte first. `data` may be empty.

    [Known answers](keys-and-hashes.md#known-answers) has examples of all of them.

    Why
    ---
    Hashes leave the process: to other ranks, to a router that sends a request where its prefix is, to storage
    that outlives the server. If one byte is packed in another order, nothing is ever found, without an error.
    With a weak hash, content of other requests appeared at common pairs of words; with a hash that leaves an
    image out, a request gets the answer for another image.

    Choices
    -------
    Nothing.

    Caller
    ------
    To fold larger ids into 32 bits, in a way that keeps them apart.

    Engines
    -------
    - sglang: the same bytes for tokens up to 32 bits (`mem_cache/cpp_utils/hash_binding.cpp`), and the
      same signed integer (`utils.py`, `hash_str_to_int64`). Pages with larger tokens have a tag and a
      wider form: different.
    - vLLM: SHA-256 of a pickled or CBOR encoded tuple of parent, tokens and extra keys
      (`vllm/utils/hashing.py`); integers for events are the **last** 8 bytes, unsigned
      (`kv_cache_utils.py`, `maybe_convert_block_hash`): different.
    - Megatron Core 0.16.1: not applicable, no hashes.
    """
    return _is_answered(operation, seen)


@law("H2", Hash, page="keys-and-hashes", ways="sop", kinds="prefix", needs="hashes")
def page_hashes_chain_from_the_root(before: CacheModel, operation: Hash, seen: SeenNode) -> Found:
    """Page hashes chain from the root, whatever was computed before.

    `hash` answers with the hashes of all pages of a path, from its first page to the page at the end of the
    node (not only the node's own pages). Page 1 is hashed after the prior of the namespace (H3), page *i*
    after the digest of page *i* - 1, each as in H1. So the hash of a page depends only on the namespace and
    on all tokens from the start to the page's end:

    - not on whether this node, or a node above it, was hashed before;
    - not on splits, on the order of inserts, on evictions and new inserts of the same key, on slots,
      holds or recency;
    - not on the run. Equal paths have equal hashes everywhere.

    The root has an empty list of hashes. A stale node is a `StaleNodeError`. `hash` makes no page recent, has
    no effects, and changes no size.

    Where nodes are shown (`inspect`), `page_hashes` are the hashes of the node's own pages, null as long as
    the cache has not computed them. When a node is split, the upper half has the first part of the list and
    the lower half the rest (R10), so that nothing is computed again. A half may show null instead; if it
    shows hashes, they are those of its own pages.

    An implementation that claims only `hashes` has its own digests, which are judged by these rules: as many
    digests as pages, equal digests for one path at any time, and different digests for two paths of one
    namespace. With the claim `digests` they are those of H1 and H3.

    A digest contains neither the width nor the page size. A page of four tokens and a page of two bigrams can
    have the same digest. This is possible even in one cache: with pages of eight, bigrams can be chosen whose
    bytes are a digest and a page, so that their first page has the hash of a second page of plain tokens. So
    an index with hashes of several widths or page sizes must store widths and sizes with the hashes.

    Why
    ---
    A caller that finds a block by its hash relies on an equal prefix, too. With hashes of the page alone, a
    prompt that repeats itself made a block its own parent; a router's index became inconsistent and crashed.
    If a hash depends on whether an ancestor happened to be hashed before, it is found on one server and not
    on the next.

    Choices
    -------
    When hashes are computed, and whether they are kept.

    Caller
    ------
    Nothing.

    Engines
    -------
    - sglang: chained in the same way (`mem_cache/utils.py`, `compute_node_hash_values`), but from the
      parent's list only if it exists already: a node whose parent was not hashed begins a new chain.
      Different.
    - vLLM: each request hashes its own whole blocks, each after the block before (`kv_cache_utils.py`,
      `get_request_block_hasher`): the same, with other bytes.
    - Megatron Core 0.16.1: not applicable, no hashes.
    """
    path, digests = seen.handle.path, seen.result.digests
    return same(f"page hashes of {path.tokens}", _hashes_of(before, path, digests, _known(before)), digests)


@page_hashes_chain_from_the_root.on(Inspect)
def _nodes_have_the_hashes_of_their_pages(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    is_tested, size, paths = False, before.page_size, _known(before)
    for path, node in seen.ends.values():
        if node.page_hashes is not None:
            expected = _hashes_of(before, path, node.page_hashes, paths)[-(len(node.tokens) // size) :]
            if node.page_hashes != expected:
                return Broken(f"page_hashes of the node at {path.tokens}", expected, node.page_hashes)
            is_tested = is_tested or len(expected) > 0
    return is_tested or None


def _known(before: CacheModel) -> dict[tuple[Space, str], Path]:
    """Return the path of each digest that was reported in a namespace, unless claims fix the digests."""
    return {(end.space, digest): end for end, digest in before.hashes.items()}


def _hashes_of(
    before: CacheModel, path: Path, told: Sequence[str], paths: dict[tuple[Space, str], Path]
) -> tuple[str, ...]:
    """Return the hashes of all pages of a path, of which the outcome reported the last few.

    Where no digests are claimed they are those that were told before, and others than those of other
    ``paths``, to which these are added: one answer may name two paths, too.
    """
    if "digests" in before.claims:
        return hash_pages(path, before.page_size)
    ends = before.cache.page_ends(path)
    told = told[max(0, len(told) - len(ends)) :]
    new = [*(f"that of {end.tokens}" for end in ends[: len(ends) - len(told)]), *told]
    hashes = []
    for end, digest in zip(ends, new, strict=True):
        known = before.hashes.get(end, digest)
        first = paths.setdefault((path.space, known), end)
        hashes.append(known if first == end else f"not that of {first.tokens}")
    return tuple(hashes)


@law("H3", Hash, page="keys-and-hashes", ways="op", kinds="prefix", needs="hashes digests extra_key")
def namespaces_seed_their_hashes(before: CacheModel, operation: Hash, seen: SeenNode) -> Found:
    """Namespaces seed their hashes so that nothing collides.

    The input before the first page of a path depends on the namespace:

    | namespace | *name* | prior of the first page |
    | --- | --- | --- |
    | none | | no bytes |
    | a string *s* | `s:` and *s* | SHA-256(one byte 0, then the 32 bytes of SHA-256(*name*)) |
    | an integer *n* | `i:` and *n* in decimal | the same |
    | several values (K2) | `t:`, and for each the 32 bytes of SHA-256(its own *name*) | the same |

    *name* is encoded in UTF-8, without a byte order mark and without a terminator. An integer is written in
    ASCII digits without leading zeros, a negative integer with `-` in front; it may have any number of
    digits: `i:0`, `i:-1`, `i:18446744073709551616`. A string may be empty (`s:`) and contain any character,
    also a line end or a zero byte; a colon has no special meaning. Each of several values has its own *name*,
    like a single string or integer; a missing value has an empty name, so its 32 bytes are the SHA-256 of
    nothing.

    The prior is 32 bytes, so the first page of a namespace is hashed like a page with another page above it.
    But no page has this prior as its hash: the prior is the hash of 33 bytes, and a page's hash covers 4
    bytes for each integer, after 32 bytes or none. This is the reason for the byte 0. The letter
    distinguishes `"1"` and `1`.

    Two namespaces have equal priors if and only if they are equal by K1.

    Why
    ---
    Where the namespace was left out of the hash, two tenants with one prompt had different nodes and equal
    hashes: every lookup by hash confuses them. If the prior were the hash of the bare name, a prompt whose
    first page has the bytes of that name would share the hashes of the namespace.

    Choices
    -------
    Nothing.

    Caller
    ------
    To pass a value for everything that KV depends on (K1).

    Engines
    -------
    - sglang: also a seed for stored hashes, of other bytes (`mem_cache/utils.py`, `storage_namespace_seed`):
      a tag, then presence, length and UTF-8 of `extra_key` and of the salt. Hashes that it reports to routers
      leave `extra_key` out (`compute_node_event_hash_values`).
    - vLLM: adapter, images and embeddings are a part of each block's hash, the salt a part of the first
      block's (`kv_cache_utils.py`, `generate_block_hash_extra_keys`). The parent of each first block is the
      hash of a seed (`init_none_hash`).
    - Megatron Core 0.16.1: not applicable, no hashes.
    """
    path = seen.handle.path
    if path.space.extra_key is None:
        return None
    expected, found = hash_pages(path, before.page_size), seen.result.digests
    if found[:1] != expected[:1]:
        return Broken(f"page hashes of {path.tokens}", expected, found)
    return len(expected) > 0 or None


def _is_answered(operation: Operation, seen: SeenAnswer) -> Found:
    return seen.result == seen.expected or Broken(f"{operation}", seen.expected, seen.result)


# -- coverage goals ------------------------------------------------------------------------------------------

_goals = partial(make_goals, "hashes")

GOALS = (
    *_goals(
        ("a slice is empty", "K1"),
        ("a slice reaches beyond the end", "K1"),
        ("a slice counts from the end", "K1"),
        ("a token is counted from the end", "K1"),
        ("a part keeps its namespace", "K1", "B140"),
        ("a page is chained to another", "H1", "B143"),
        ("the largest token is hashed", "H1"),
        ("a digest is a negative number", "H1"),
        ("a digest is a positive number", "H1"),
        ("a hash of bytes exceeds what is signed", "H1"),
        ("a key in form list is read", "K1", "B155"),
        ("a page in form list is hashed", "H1", "B155"),
    ),
    *_goals(
        *((f"a key in form {form} is read", "K1", "B155") for form in KEY_FORMS[1:]),
        *((f"a page in form {form} is hashed", "H1", "B155") for form in KEY_FORMS[1:]),
        needs="forms",
    ),
    *_goals(("a part keeps its several values", "K2"), needs="lora"),
    *_goals(
        ("a key of tuples is read", "K1"),
        ("a page of tuples is hashed", "H1"),
        needs="bigrams",
    ),
    *_goals(
        ("a token outside the key is asked for", "K1"),
        ("a token below 0 is refused", "H1"),
        ("a token above 32 bits is refused", "H1"),
        ("a prior that is no digest is refused", "H1"),
        ("what is no digest is not turned into a number", "H1"),
        needs="refuses_bad_arguments",
    ),
    *_goals(("a malformed call is refused", "X1"), needs="refuses_malformed"),
    *_goals(
        ("a page of several widths is refused", "H1"),
        ("a page of tuples of one number is refused", "K1"),
        needs="refuses_bad_arguments bigrams",
    ),
)
"""Coverage goals that a search for violations must reach on keys and hashes."""


def _met_by_part(key: Key, part: Tokens) -> Met:
    return {
        f"a key in form {key.form} is read": part.tokens,
        "a key of tuples is read": any(isinstance(token, tuple) for token in part.tokens),
        "a part keeps its namespace": key.extra_key is not None,
        "a part keeps its several values": isinstance(key.extra_key, tuple),
    }


def _met_by_slice(model: HashModel, operation: SliceKey, seen: SeenAnswer) -> Met:
    key, part = operation.key, seen.result.tokens
    least = min(operation.start or 0, operation.stop or 0)
    return {
        **_met_by_part(key, seen.result),
        "a slice is empty": key.tokens and not part,
        "a slice reaches beyond the end": (operation.stop or 0) > len(key.tokens),
        "a slice counts from the end": part and least < 0,
    }


def _met_by_pick(model: HashModel, operation: PickToken, seen: SeenAnswer) -> Met:
    is_from_end = operation.at < 0
    return {**_met_by_part(operation.key, seen.result), "a token is counted from the end": is_from_end}


def _met_by_page(model: HashModel, operation: HashPage, seen: SeenAnswer) -> Met:
    key, numbers = operation.key, seen.numbers
    return {
        f"a page in form {key.form} is hashed": numbers,
        "a page of tuples is hashed": len(numbers) > len(key.tokens),
        "a page is chained to another": operation.prior,
        "the largest token is hashed": TOKENS[-1] in numbers,
    }


def _met_by_digest(model: HashModel, operation: HashInt64, seen: SeenAnswer) -> Met:
    number = seen.result.value
    return {"a digest is a negative number": number < 0, "a digest is a positive number": number > 0}


def _met_by_bytes(model: HashModel, operation: HashBytes, seen: SeenAnswer) -> Met:
    return {"a hash of bytes exceeds what is signed": seen.result.value >= 2**63}


HASHES = KindLaws(
    order="K2 K1 H1",
    asked={
        SliceKey: Asked(Tokens, "K1"),
        PickToken: Asked(Tokens, "K1"),
        HashPage: Asked(Hashes, "H1"),
        HashInt64: Asked(Number, "H1"),
        HashBytes: Asked(Number, "H1"),
    },
    sizes_law="X1",
    met={
        (SliceKey, DONE): _met_by_slice,
        (PickToken, DONE): _met_by_pick,
        (HashPage, DONE): _met_by_page,
        (HashInt64, DONE): _met_by_digest,
        (HashBytes, DONE): _met_by_bytes,
    },
    counts_all=False,
)
