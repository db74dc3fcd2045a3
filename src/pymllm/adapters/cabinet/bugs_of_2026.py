"""Bugs that were written down in 2026."""

from __future__ import annotations

from pymllm.adapters.cabinet.fault import SUMMARY, Bug

BUGS = (
    Bug(
        "B166",
        "A grouped free resolves window halves only at the end of the group",
        "sglang",
        "sgl-project/sglang/pull/36135 sgl-project/sglang/issues/36081 sgl-project/sglang/pull/36646",
        "The free of window slots notes the full slots and looks their window halves up when the group "
        "ends; a revival in between has given these full slots new halves.",
        "The leak check reported one page: the new half was freed, and the old one could be reached by "
        "nobody.",
        version="0.5.18",
    ),
    Bug(
        "B167",
        "Freeing a window half by whole pages erases the neighbour's mapping",
        "sglang",
        "sgl-project/sglang/pull/36457",
        "Two halves of a split may share a page; freeing one clears the mapping of every slot in that page.",
        "An eviction was credited with 576 window tokens and freed 512.",
    ),
    Bug(
        "B169",
        "Recycled full slots keep the window halves of their previous owner",
        "sglang",
        "sgl-project/sglang/pull/25805 sgl-project/sglang/pull/26078",
        "An allocation that gives only its tail window halves leaves the old mapping at the other slots.",
        "After about 2,000 requests the window pool had more free slots than slots, and the engine stopped.",
    ),
    Bug(
        "B170",
        "An admission that lacks window slots asks for full tokens only",
        "sglang",
        "sgl-project/sglang/pull/29662",
        "The caller passes the missing tokens as full ones; window halves of inner nodes go only when "
        "window tokens are asked for.",
        "Decoding stopped because the cache was full, with hundreds of thousands of evictable window slots.",
    ),
    Bug(
        "B172",
        "A row is repointed by the usable match, which is zero on a tombstoned prefix",
        "sglang",
        "sgl-project/sglang/pull/27770",
        "After an insert, the row follows the tree only as far as a match with live windows reaches; what "
        "lies behind it has been freed as a duplicate.",
        "The row goes on naming slots that have been returned; the thread as found shows the feature's "
        "review and not this correction.",
    ),
    Bug(
        "B173",
        "A clean-up releases a hold that its request never took",
        "sglang",
        "sgl-project/sglang/pull/37494",
        "The path that frees without an insert releases the request's node, but a synthetic request has "
        "matched none.",
        "Profiling ended with an error before the pipeline's ranks were in step.",
    ),
    Bug(
        "B175",
        "A remembered list of hashes is extended in place by its caller",
        "sglang",
        "sgl-project/sglang/pull/26939",
        "A node keeps its page hashes and hands out the very list, and a caller appends the hashes of its "
        "own pages.",
        "Later questions for the node's hashes get pages that it does not have.",
        SUMMARY,
    ),
    Bug(
        "B176",
        "Matches never raise the hit count",
        "sglang",
        "sgl-project/sglang/pull/18843",
        "Neither a match nor an insert counts a node's hits, so every node has as many as every other.",
        "Eviction by frequency fell back to an arbitrary order, and hot prompts went with the rest.",
    ),
    Bug(
        "B178",
        "The end of a request frees slots that a revived node has just adopted",
        "sglang-jax",
        "sgl-project/sglang-jax/issues/1618",
        "An insert that revives a tombstone takes the request's slots over, yet counts them as a prefix "
        "that was there before, and the request frees that prefix.",
        "Slots of the tree were in the free list, ready for the next request.",
    ),
    Bug(
        "B179",
        "A release without a hold makes ancestors evictable that others use",
        "sglang (fork of bytedance-iaas)",
        "bytedance-iaas/sglang/pull/748",
        "One path unlocks a node that it never locked, and the walk takes a count off every ancestor.",
        "Ancestors in use counted as evictable.",
        SUMMARY,
    ),
    Bug(
        "B181",
        "A move of KV puts tokens into the wrong places of a page",
        "sglang",
        "sgl-project/sglang/pull/31218 sgl-project/sglang/pull/31215",
        "The move takes numbers of tokens for numbers of pages, or one layout in a page for another; the "
        "same bytes of the page are touched, in another order.",
        "Silent corruption with pages of several tokens; no check of whole pages can see it, not even a "
        "checksum.",
    ),
    Bug(
        "B182",
        "A virtual slot number is used untranslated on a rank's buffer",
        "sglang",
        "sgl-project/sglang/pull/36989 sgl-project/sglang/issues/36886",
        "The allocator counts slots of all ranks, and one write kernel lacks the step that turns these "
        "into a rank's own.",
        "Below the size of one rank's buffer all was well; beyond it, output became worse with the state "
        "of the server, or other kernels crashed.",
    ),
    Bug(
        "B184",
        "Events announce a block size in which no block is emitted",
        "sglang",
        "sgl-project/sglang/pull/35298",
        "The server's description names the physical page, while the tree emits pages that are wider by "
        "the number of ranks.",
        "The router's hit rate was exactly 0, and all local figures looked healthy.",
    ),
    Bug(
        "B185",
        "A native port lacks result fields, and their defaults switch a feature off",
        "sglang",
        "sgl-project/sglang/pull/37584",
        "The port implements the interface anew without three fields, and the adapter fills absent fields "
        "with None or False.",
        "A whole feature did nothing on that backend: no crash, no message.",
    ),
    Bug(
        "B187",
        "A checkpoint in the middle of a prefill leaves live blocks evictable",
        "atlas",
        "Avarok-Cybersecurity/atlas/pull/158",
        "The checkpoint inserts nodes over the request's blocks without a reference of the request, and "
        "the request still reads them.",
        "With four requests at a time, live blocks were zeroed and handed out to others.",
    ),
    Bug(
        "B188",
        "The lookup of recurrent states ignores the blocks that a draft drops",
        "vLLM",
        "vllm-project/vllm/pull/57128 vllm-project/vllm/pull/48375 vllm-project/vllm/issues/53912",
        "The other managers drop the last matched block for the draft model; the one for states accepts "
        "the argument and does nothing with it.",
        "Output came back empty or as one repeated character, without an error; tool calls fell from 90 % "
        "right to 50 %.",
    ),
    Bug(
        "B190",
        "A boundary without a state is published as block 0",
        "vLLM",
        "vllm-project/vllm/issues/53084 vllm-project/vllm/pull/51358",
        "The connector takes a state's block by its position in a table that is sparse, and finds the null"
        " block.",
        "Zeroed states lay in the store under valid keys, and whoever restored one got garbled output.",
    ),
    Bug(
        "B191",
        "A deferred free reverses the blocks of all groups at once",
        "vLLM",
        "vllm-project/vllm/pull/48532 vllm-project/vllm/issues/48489",
        "The immediate free reverses each group by itself so that ends of prompts go first; the deferred "
        "one puts the groups into one list and reverses that.",
        "Blocks were evicted group by group instead of from the end of the prompt.",
    ),
    Bug(
        "B193",
        "What the window's mask caches is never what a lookup needs",
        "vLLM",
        "vllm-project/vllm/pull/44082 vllm-project/vllm/pull/42258",
        "The mask leaves blocks out that can serve no hit; with a draft model, a lookup needs one block "
        "more, and just that is left out.",
        "The hit rate was 0.0 % for ever, with caching reported as on.",
    ),
    Bug(
        "B194",
        "One dropped block costs a whole unit of alignment",
        "vLLM Ascend",
        "vllm-project/vllm-ascend/issues/9247 vllm-project/vllm-ascend/pull/11314",
        "The draft's block is dropped first and the rest is then rounded down to the common multiple of "
        "all block sizes.",
        "A hit of 32,768 tokens became one of 16,384.",
    ),
    Bug(
        "B196",
        "A removal is announced while another copy remains",
        "vLLM",
        "vllm-project/vllm/pull/55092 vllm-project/vllm/pull/48933",
        "Each physical eviction emits an event with the hash, whether or not another block still carries it.",
        "Whoever follows the events forgets prefixes that are still cached.",
    ),
    Bug(
        "B197",
        "Host blocks are evicted between their lookup and their use",
        "vLLM",
        "vllm-project/vllm/pull/42289",
        "Two phases each look the hit up, and nothing holds the blocks of the first until the second.",
        "After 20 minutes the engine stopped: 257,024 tokens were expected and 252,416 found.",
    ),
    Bug(
        "B199",
        "A block that is released twice is queued twice",
        "TensorRT-LLM",
        "NVIDIA/TensorRT-LLM/pull/14937 NVIDIA/TensorRT-LLM/pull/12667",
        "A pin takes a block that still lies in the free queue, and its release queues the block again.",
        "An entry remained that nobody could remove, and one block was handed out twice.",
        SUMMARY,
    ),
    Bug(
        "B200",
        "A commit behind the window keeps its holder",
        "TensorRT-LLM",
        "NVIDIA/TensorRT-LLM/pull/14478 NVIDIA/TensorRT-LLM/pull/14725",
        "Blocks that have left the window are given up before they are committed; one that is committed "
        "later keeps the reference that the commit has made.",
        "A worker stopped when it set a request aside to make room.",
    ),
    Bug(
        "B202",
        "The room of a step stays taken when the step is dropped",
        "TensorRT-LLM",
        "NVIDIA/TensorRT-LLM/pull/13104 NVIDIA/TensorRT-LLM/pull/14849",
        "Requests grow before the last check of the batch; when that says no, nothing takes the growth back.",
        "Dropped steps added up until a page index overflowed; a later rollback broke another rule and was"
        " removed.",
    ),
    Bug(
        "B203",
        "A removal that finds no node leaves its entry in the index",
        "Dynamo",
        "ai-dynamo/dynamo/pull/11785 ai-dynamo/dynamo/pull/11169",
        "A worker's entry may name a node that a split has emptied; the removal skips the hash and keeps "
        "the entry.",
        "Entries of blocks that nobody has piled up, without a message.",
    ),
    Bug(
        "B205",
        "Hits are counted before the request is admitted",
        "Megatron-LM",
        "NVIDIA/Megatron-LM/pull/6416",
        "The counters of hits and matched blocks rise with the match, and again when the refused request "
        "tries anew.",
        "Reuse was reported twice; with recurrent states, 768 tokens were reported as cached where 256 "
        "were skipped.",
    ),
)
