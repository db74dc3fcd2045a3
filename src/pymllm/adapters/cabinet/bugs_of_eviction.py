"""Bugs of what leaves a tree: windows, victims and their order."""

from __future__ import annotations

from pymllm.adapters.cabinet.fault import COMMIT, RUN, Bug

_MLLM = "UbiquitousLearning/mllm/blob/b9c307020b2e200ea43cd67747d1581e4eba85fd/pymllm/"

BUGS = (
    Bug(
        "B31",
        "The count of live window tokens survives a tombstone",
        "sglang",
        "sgl-project/sglang/pull/17061",
        "It is set back only where it was large enough for a hit, so a short run before a tombstone is "
        "added to the run behind it.",
        "Matches were accepted whose last window contains freed slots.",
    ),
    Bug(
        "B32",
        "Window eviction reaches the last leaf where a page is larger than the window",
        "sglang",
        "sgl-project/sglang/pull/29860",
        "The frontier leaves one window of tokens, but is then rounded to whole pages and arrives at the "
        "end of the sequence.",
        "A wholly dead leaf was inserted; later an assertion failed, or window memory leaked.",
    ),
    Bug(
        "B34",
        "Reviving a tombstone replaces slots that other requests hold",
        "sglang",
        "sgl-project/sglang/pull/29352",
        "The revival frees the node's old slots and puts the new ones in their place, without a look at "
        "the node's full lock.",
        "Another request went on reading slots that had just been freed, and its output was corrupted.",
    ),
    Bug(
        "B35",
        "Upstream pymllm revives a held tombstone from where the inserting request began",
        "mllm",
        f"{_MLLM}mem_cache/radix_cache.py",
        "Only the prefix that the inserting request itself holds is protected; a hold of somebody else is "
        "not.",
        "With a request on the node, a second insert freed the slots 1 to 4 that the request was reading.",
        RUN,
        version="commit b9c30702",
    ),
    Bug(
        "B37",
        "KV that has left the window is freed and cached afterwards",
        "sglang",
        "sgl-project/sglang/pull/31486",
        "In a cache with one pool, decoding has already returned the very range that the end of the "
        "request then inserts.",
        "Hits returned slots of other requests, and evicting the node freed them a second time.",
    ),
    Bug(
        "B38",
        "An unfinished request does not pass its window boundary on",
        "sglang",
        "sgl-project/sglang/pull/30845",
        "The finished path passes the number of tokens whose window is gone; the unfinished one leaves the"
        " default of zero.",
        "After a chunk of prefill, the tree took freed window pages for live ones.",
    ),
    Bug(
        "B40",
        "A leaf that is held, but not by its window, blocks the window eviction",
        "sglang (fork of kvcache-ai)",
        "kvcache-ai/sglang/pull/49",
        "Eviction assumes that a leaf is deleted; one beyond every held window can only become a tombstone.",
        "Window eviction crashed on such leaves; a quiet variant leaves them out and frees less than it "
        "was asked for.",
    ),
    Bug(
        "B41",
        "Window eviction takes the one window that makes a branch usable",
        "sglang",
        "sgl-project/sglang/pull/35515",
        "Recency knows nothing of a branch's last window, and one tombstone in it makes the whole branch "
        "unmatchable.",
        "A parked conversation lost all its reuse, tens of thousands of tokens, while its full KV stayed "
        "in memory.",
    ),
    Bug(
        "B43",
        "Upstream pymllm's windowed match does not refresh what it returns",
        "mllm",
        f"{_MLLM}mem_cache/radix_cache.py",
        "The plain match writes time and hits of the nodes, the windowed one writes neither.",
        "Of two cached prompts, the one that had just been hit was evicted first, with a window only.",
        RUN,
        version="commit b9c30702",
    ),
    Bug(
        "B44",
        "Tombstone leaves stay after a full eviction",
        "FlexKV",
        "taco-project/FlexKV/pull/195",
        "The cascade that removes them was written for the window's path; the full path never runs it.",
        "Useless leaves piled up in the tree, and callers trusted a count that the cascade can exceed.",
    ),
    Bug(
        "B46",
        "Freeing a tombstone is reported as window memory freed",
        "mllm",
        f"{_MLLM}mem_cache/radix_cache.py",
        "The first phase of the eviction adds a leaf's length to both totals, whether or not it has window"
        " slots.",
        "An eviction reported two window slots for a leaf that owned none, and the second phase stopped "
        "too early.",
        RUN,
        version="commit b9c30702",
    ),
    Bug(
        "B47",
        "Exactly one window is retained, so one token of divergence loses everything",
        "vLLM",
        "vllm-project/vllm/issues/57610",
        "The retained tail is just as long as a hit at its aligned end needs; a hit one unit earlier "
        "misses blocks at the front.",
        "Whoever edited the last turn of a chat got no hit at all.",
        version="0.29.0",
    ),
    Bug(
        "B49",
        "The matched half of a split keeps an old time",
        "mini-sglang",
        "sgl-project/mini-sglang/pull/124",
        "The node that a partial hit splits off is not stamped.",
        "The prefix that had just been hit was the first to be evicted.",
    ),
    Bug(
        "B50",
        "A split makes the half young that nobody asked for",
        "sglang",
        "sgl-project/sglang/pull/24892",
        "The node is stamped before the split, and both halves inherit the time.",
        "Tokens that no request had matched outlived others that were in use.",
    ),
    Bug(
        "B52",
        "A caller asks for pages where the eviction counts tokens",
        "mini-sglang",
        "sgl-project/mini-sglang/commit/dae78f6bb97d5c5aaadbc0772fc964d48a8ee726 "
        "sgl-project/mini-sglang/pull/80",
        "The engine passes a number of pages to an eviction in tokens, and does not thin its answer to one"
        " entry a page.",
        "With pages of several tokens, the engine stopped because the eviction had not freed enough.",
        COMMIT,
    ),
    Bug(
        "B53",
        "Of nodes with equal times, the victim is chosen by address",
        "tokenspeed",
        "lightseekorg/tokenspeed/pull/248",
        "Nodes of one batch have one time, and hashes of pointers and unordered containers decide between "
        "them.",
        "After hours, tensor-parallel ranks evicted different nodes, disagreed on a shape and hung.",
    ),
    Bug(
        "B55",
        "Times in whole seconds make eviction random",
        "rMLX",
        "Pushkinist/rMLX/issues/343",
        "All blocks that were used within a second are equal, and nothing else decides between them.",
        "The hit rate fell as the load rose: 13 hits of 240 in one test.",
    ),
    Bug(
        "B56",
        "A lazy heap repaired on removal fits some eviction orders only",
        "sglang-omni",
        "sgl-project/sglang-omni/pull/1724",
        "Repair on removal keeps the order only if no entry can become more urgent than its stored key.",
        "Found in review: with the newest first, a stale entry stays buried and the wrong node is evicted.",
    ),
    Bug(
        "B58",
        "The window tree's list and its times disagree",
        "sglang",
        "sgl-project/sglang/issues/8931",
        "Recency is written down twice, and some path updates one of the two; the text read names no cause.",
        "The sanity check stopped the server minutes after its start.",
    ),
    Bug(
        "B59",
        "The state tree's list and its times disagree",
        "sglang",
        "sgl-project/sglang/issues/12007",
        "As in the window tree, one path forgets one of the two records, here the list of the nodes with a"
        " state.",
        "Several machines reported the same stop; corrections of corner cases followed for both trees.",
    ),
    Bug(
        "B61",
        "A victim still has descendants in another tier",
        "TensorRT-LLM",
        "NVIDIA/TensorRT-LLM/pull/4596",
        "Whether a block is a leaf is asked per tier, so a block with children elsewhere looks like one.",
        "A block in the middle of a chain was freed because it could not be offloaded.",
    ),
    Bug(
        "B62",
        "A counter is changed on the wrong side of a move",
        "TensorRT-LLM",
        "NVIDIA/TensorRT-LLM/pull/12834",
        "The tier is read from the block after its memory was swapped, so the wrong tier's counter moves.",
        "Free blocks exceeded their maximum, used ones went below zero, and an entry was erased from a "
        "list that it was not in.",
    ),
    Bug(
        "B64",
        "Admission ignores what could be evicted",
        "LMDeploy",
        "InternLM/lmdeploy/pull/4100",
        "It asks for blocks that are free now, and a full tree leaves none.",
        "The server stopped scheduling prefills and died on an empty running queue once the tree held most"
        " blocks.",
    ),
    Bug(
        "B65",
        "Write-back never comes to the parents of what it evicted",
        "sglang",
        "sgl-project/sglang/issues/5499",
        "The list of nodes to look at afterwards is created and read, but nothing is put into it.",
        "Parents were never considered, and device slots were not returned.",
    ),
)
