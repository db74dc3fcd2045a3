"""Bugs of prefix trees: structure, holds, keys and hashes."""

from __future__ import annotations

from pymllm.adapters.cabinet.fault import COMMIT, RUN, THREAD_AND_RUN, Bug

_MLLM = "UbiquitousLearning/mllm/blob/b9c307020b2e200ea43cd67747d1581e4eba85fd/pymllm/"

BUGS = (
    Bug(
        "B01",
        "A match hands back the root as the matched node",
        "mini-sglang",
        "sgl-project/mini-sglang/commit/61acfdcb14c9340ce48fb8975cb3e004dd9ff3f1 "
        "sgl-project/mini-sglang/pull/46",
        "The loop that gathers the slots climbs to the root with the very variable that then goes into the"
        " handle, so every handle names the root.",
        "Prefix hits worked, but what was hit was never held; under pressure it was evicted while requests"
        " read it.",
        COMMIT,
    ),
    Bug(
        "B02",
        "An exact match returns the parent of the matching node",
        "text-generation-inference",
        "huggingface/text-generation-inference/commit/fa4e9511f8f9223f5a8fa194ae9917f3c3c4c28e "
        "huggingface/text-generation-inference/pull/3067",
        "The search notes its result only when it descends further, so a key that ends at a node yields "
        "that node's parent.",
        "References were taken one level too high, and the node with the blocks could be reclaimed during "
        "use.",
        COMMIT,
    ),
    Bug(
        "B04",
        "A split files the upper half under an empty child key",
        "sglang",
        "sgl-project/sglang/pull/36696",
        "A child's key in its parent is written at the split and computed anew at the deletion; a split at"
        " a length that is no whole page makes the two differ.",
        "The production scheduler died inside an eviction because the parent knew no such child, long "
        "after the split that broke the tree.",
    ),
    Bug(
        "B05",
        "A windowed insert continues below the wrong half of a split",
        "mllm",
        f"{_MLLM}mem_cache/radix_cache.py",
        "The plain insert goes on from the node that the split returns; the windowed one drops that node "
        "and goes on from the lower half.",
        "A key that nobody had inserted then matched nine slots of two other keys, and the key that was "
        "inserted matched three.",
        RUN,
        version="commit b9c30702",
    ),
    Bug(
        "B07",
        "The halves of a split are views that keep the whole tensor alive",
        "sglang",
        "sgl-project/sglang/pull/17191",
        "Both halves are slices of one tensor, whose memory is not returned before the last slice is gone.",
        "Servers ran out of device memory after long service: the process held hundreds of times what the "
        "tree counted.",
    ),
    Bug(
        "B08",
        "The tree stores a view of a request's page table row",
        "mini-sglang",
        "sgl-project/mini-sglang/commit/94fe255bb4145bb089a4ae64e566341327d996f7",
        "A new leaf keeps a slice of the request table without copying it, and the row's next owner "
        "rewrites that memory.",
        "Cached prefixes began to name pages of other requests once the row was in use again.",
        COMMIT,
    ),
    Bug(
        "B10",
        "Two nodes of a tree own the same pages",
        "sglang",
        "sgl-project/sglang/issues/35270",
        "A last page whose tokens change with each step is cached; the next insert diverges in it, its "
        "overlap comes out negative, nothing is freed, and a second node is made of the same pages.",
        "The idle check stopped a server whose tree counted 160 tokens more than the pool has, though "
        "every request had succeeded.",
    ),
    Bug(
        "B11",
        "A hybrid match stops at the first node without a recurrent state",
        "sglang-jax",
        "sgl-project/sglang-jax/commit/3e7d4ed5bdf3c91c783e1e464c8759868d361664 "
        "sgl-project/sglang-jax/pull/1457",
        "A guard against missing KV was applied to every component, but most inner nodes have no state by "
        "design.",
        "Prompts of more than two state intervals never hit, although valid states lay deeper.",
        COMMIT,
    ),
    Bug(
        "B13",
        "A hold leaves out the node that it was asked to hold",
        "mini-sglang",
        "sgl-project/mini-sglang/pull/52",
        "The step to the parent is the first statement of the loop, so only ancestors are counted.",
        "A matched node could be evicted in use, and the engine crashed when it read it.",
    ),
    Bug(
        "B14",
        "Releasing the last hold is taken for an underflow",
        "mini-sglang",
        "sgl-project/mini-sglang/commit/5e1318b0e4270e19b3b8a1bff5e776c17de54837 "
        "sgl-project/mini-sglang/pull/44",
        "The check after the decrement demands more than zero instead of zero or more.",
        "Ordinary requests failed an assertion when they finished.",
        COMMIT,
    ),
    Bug(
        "B16",
        "The evictable size turns negative when a leaf gains a child",
        "mllm",
        "UbiquitousLearning/mllm/pull/656",
        "The first child takes its parent's tokens off the counter as if only leaves counted, while holds "
        "and splits move tokens of inner nodes, too.",
        "Sizes of -3 and -5 were seen, and the scheduler planned with them; random runs of the class broke"
        " the size law in two of five programs.",
        THREAD_AND_RUN,
    ),
    Bug(
        "B17",
        "A temporary hold is released without its window boundary",
        "sglang",
        "sgl-project/sglang/pull/27038",
        "One caller does not pass the boundary's id on, so the release walks up to the root and takes "
        "other requests' window locks along.",
        "The server crashed in a cascading eviction: a node whose state a decoding request held had no "
        "window lock any more.",
    ),
    Bug(
        "B19",
        "A hold across a tombstone that is revived releases what it never took",
        "mllm",
        f"{_MLLM}mem_cache/radix_cache.py",
        "Taking and releasing each ask at their own time which nodes are tombstones, and nothing records "
        "which were counted.",
        "A hold, a revival and the release left a window count of -1 on the parent.",
        RUN,
        version="commit b9c30702",
    ),
    Bug(
        "B20",
        "An early window release takes a lock that another request holds",
        "sglang",
        "sgl-project/sglang/pull/36350",
        "The walk of the early release does not ask which nodes its own request had skipped.",
        "Request B lost its window lock when request A, which had never locked that node, released early.",
    ),
    Bug(
        "B22",
        "The split of a held node copies the state lock to the upper half",
        "mllm",
        f"{_MLLM}mem_cache/mamba_radix_cache.py",
        "A state lock covers its own node only, so the new upper node must begin at zero; the split copies"
        " both counts.",
        "After the release, a state lock stayed on the upper node for ever, and that state could never be "
        "evicted.",
        RUN,
        version="commit b9c30702",
    ),
    Bug(
        "B23",
        "A split moves the window boundary's id twice and loses it",
        "sglang",
        "sgl-project/sglang/pull/38835",
        "Two corrections were merged one after the other: the first moves the id from the child to the new"
        " parent, the second then overwrites it with nothing.",
        "A release walked past the end of its window and failed an assertion on an ancestor that was not "
        "locked.",
    ),
    Bug(
        "B25",
        "A window lock is missing after hours of long contexts",
        "sglang",
        "sgl-project/sglang/issues/24153",
        "The thread names no final cause; the same node on every rank points to a boundary that a split "
        "has lost.",
        "After hours of traffic, all tensor-parallel ranks failed the same assertion, with nothing to be "
        "done but a restart.",
    ),
    Bug(
        "B26",
        "A retracted request releases its window lock a second time",
        "sglang",
        "sgl-project/sglang/pull/28161",
        "The note that the window was released early reaches the path of finished requests, but not the "
        "one of unfinished ones.",
        "Found in review: the second release takes counts off ancestors that other requests hold.",
    ),
    Bug(
        "B28",
        "An object whose last reference goes while it is pinned is never freed",
        "LMCache",
        "LMCache/LMCache/issues/1130",
        "Only the drop of the reference asks whether the object may go; the drop of the pin does not.",
        "Memory leaked until the process was restarted.",
    ),
    Bug(
        "B29",
        "A retrieval takes a reference and never gives it back",
        "LMCache",
        "LMCache/LMCache/pull/3884",
        "On the path that keeps the object, the reference and the pin that were taken for reading stay.",
        "The allocator ran out of pages under sustained load, and the server fell over.",
    ),
    Bug(
        "B136",
        "A weak hash lets different prompts collide",
        "vLLM",
        "vllm-project/vllm/pull/12621",
        "The process's built-in hash was used, with a constant start value on newer Pythons.",
        "A user reported another request's content at common pairs of words under load; later releases use"
        " SHA-256.",
    ),
    Bug(
        "B137",
        "A hit is not compared with its tokens",
        "OpenVINO GenAI",
        "openvinotoolkit/openvino.genai/issues/3722",
        "Blocks keep their hash only, so an equal hash is taken for an equal prefix.",
        "A collision returned a wrong block, without an error.",
    ),
    Bug(
        "B139",
        "A user's extra key can equal an adapter's id",
        "sglang",
        "sgl-project/sglang/issues/24638",
        "Both end up in one field of the key.",
        "Output changed deterministically, and tenants were no longer isolated.",
    ),
    Bug(
        "B140",
        "The adapter is not part of the hash",
        "vLLM",
        "vllm-project/vllm/issues/3264",
        "A new hash function left the adapter out that the old one had.",
        "Adapters shared the KV of equal prompts; four other projects had the same gap.",
    ),
    Bug(
        "B142",
        "Different images with equal placeholder tokens share KV",
        "TensorRT-LLM",
        "NVIDIA/TensorRT-LLM/pull/12306",
        "The key has the placeholders only and nothing of the images' content.",
        "One image was answered with the KV of another.",
    ),
    Bug(
        "B143",
        "Hashes of content alone make a block its own parent",
        "sglang",
        "sgl-project/sglang/pull/13488",
        "A hash covers one block's tokens and not what comes before it, so repeated tokens repeat the hash.",
        "The router's index became inconsistent and crashed on repeated tokens.",
    ),
    Bug(
        "B145",
        "The hash of a node ignores its namespace",
        "mllm",
        f"{_MLLM}mem_cache/radix_cache.py",
        "Only token ids are hashed.",
        "Two namespaces with equal tokens had different nodes and equal hashes.",
        RUN,
        version="commit b9c30702",
    ),
    Bug(
        "B146",
        "The hash granularity is lost when a pool is replaced",
        "kvcached",
        "ovg-project/kvcached/pull/451",
        "Groups have different block sizes, and the finer hash size was not carried over to the new pool.",
        "Blocks were cached under hashes of other ranges of tokens.",
    ),
)
