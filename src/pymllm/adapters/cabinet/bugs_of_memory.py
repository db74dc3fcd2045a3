"""Bugs of what holds the data: recurrent states, slots and pages, blocks and their index."""

from __future__ import annotations

from pymllm.adapters.cabinet.fault import CODE, COMMIT, RUN, Bug

_MLLM = "UbiquitousLearning/mllm/blob/b9c307020b2e200ea43cd67747d1581e4eba85fd/pymllm/"

BUGS = (
    Bug(
        "B67",
        "A queued request is aborted after it was given memory",
        "sglang",
        "sgl-project/sglang/pull/20182",
        "Three abort paths assume that a request that never ran owns nothing, but its match had given it a"
        " state slot.",
        "After timeouts in the waiting queue, the leak check ended the scheduler.",
    ),
    Bug(
        "B68",
        "Slots that were freed are still named by their request",
        "sglang",
        "sgl-project/sglang/pull/26941",
        "The pool's side is released, the request's own reference stays, and the next allocation is left "
        "out because a reference exists.",
        "The first session that was closed killed the scheduler: three slots were missing.",
    ),
    Bug(
        "B70",
        "A state is attached to a shorter prefix than it covers",
        "sglang",
        "sgl-project/sglang/pull/34808",
        "Pages of the tree and checkpoints of the states lie on different grids; the key was rounded down,"
        " the state was not.",
        "Tokens between the two depths were absorbed twice, and warm runs answered with other "
        "probabilities than cold ones, by up to 6.9.",
    ),
    Bug(
        "B71",
        "A state is stored under a key that another component has shortened",
        "sglang",
        "sgl-project/sglang/pull/39209",
        "The key is cut to the smallest boundary of all components after the state was chosen.",
        "A warm request resumed at depth 96 from the state after 192 tokens.",
    ),
    Bug(
        "B73",
        "Counters of states mix tokens and slots",
        "mllm",
        f"{_MLLM}mem_cache/mamba_radix_cache.py",
        "A state is added as so many tokens, moved by holds as one slot, and removed as either.",
        "One state at a node of ten tokens counted as ten evictable ones, and a hold left nine evictable "
        "and one protected.",
        RUN,
        version="commit b9c30702",
    ),
    Bug(
        "B74",
        "An insert reports a state as present because an ancestor has one",
        "mllm",
        f"{_MLLM}mem_cache/mamba_radix_cache.py",
        "The flag is raised on the way down instead of at the final node.",
        "The tree took the new state and said that it had not; a caller that then freed its duplicate "
        "freed a slot of the tree.",
        RUN,
        version="commit b9c30702",
    ),
    Bug(
        "B76",
        "An aborted restore leaves a state slot that nobody has filled",
        "sglang",
        "sgl-project/sglang/pull/30986",
        "The slot is published to the request before the copy is known to happen, and an abort undoes "
        "nothing.",
        "Requests decoded from uninitialised memory or from the previous owner's state.",
    ),
    Bug(
        "B77",
        "No state slot to be had is a crash instead of a skipped cache",
        "sglang",
        "sgl-project/sglang/pull/36770",
        "Caching a state is optional, but the helper asserts that a slot can always be evicted.",
        "A scheduler was killed 16 times a day with half of its pool unused.",
    ),
    Bug(
        "B79",
        "A step without requests wipes the prefix cache",
        "Megatron-LM",
        "NVIDIA/Megatron-LM/commit/e5344abbdf8193c503032218f118a861690e7b29 NVIDIA/Megatron-LM/pull/5502",
        "The dummy forward pass of an idle engine calls the full reset, allocators included.",
        "With few users nothing was ever reused: whenever the engine idled, the cache was gone.",
        COMMIT,
    ),
    Bug(
        "B80",
        "State offsets are counted from the first chunk only",
        "Megatron-LM",
        "NVIDIA/Megatron-LM/commit/e5344abbdf8193c503032218f118a861690e7b29 NVIDIA/Megatron-LM/pull/5502",
        "Boundaries are taken relative to the skipped tokens instead of finished and skipped ones, and "
        "only in the first chunk.",
        "Prompts over several chunks never cached a place to resume from; later turns skipped 0 % of their"
        " tokens.",
        COMMIT,
    ),
    Bug(
        "B82",
        "An allocation of state slots takes free ones before it fails",
        "Megatron-LM",
        "NVIDIA/Megatron-LM/commit/d04e7a0ba77d5ee14a7584d22379579fac94fb66 NVIDIA/Megatron-LM/pull/6091",
        "Free slots are popped first, and only then the evictable ones are counted.",
        "The popped slots were lost, and the engine stopped.",
        COMMIT,
    ),
    Bug(
        "B83",
        "Scratch buffers are missing from the state budget",
        "Megatron-LM",
        "NVIDIA/Megatron-LM/commit/a83f40887a550eefa01ca345acd2630e49ce5ac5 NVIDIA/Megatron-LM/pull/5348",
        "All of the budget goes into durable slots, but extraction needs scratch memory of the same size "
        "per slot.",
        "Memory exceeded the configured gigabytes, sometimes until nothing was left; or caching was "
        "silently off.",
        COMMIT,
    ),
    Bug(
        "B85",
        "A snapshot's allocation evicts the blocks that are being committed",
        "TensorRT-LLM",
        "NVIDIA/TensorRT-LLM/issues/17926",
        "Committing a block allocates a state page, that evicts, and the eviction detaches ancestors "
        "without children.",
        "Prompts of 256k tokens ended in a segmentation fault: about 2,440 blocks had been detached in one"
        " walk.",
    ),
    Bug(
        "B86",
        "A state's index is computed in the wrong block size",
        "vLLM",
        "vllm-project/vllm/issues/55600",
        "Tokens are divided by the cache's block size, which another group had lowered, instead of the "
        "state's own.",
        "From eight blocks on the access was illegal; below that, a wrong state was silently restored.",
    ),
    Bug(
        "B88",
        "A partial removal reports success and leaves the recurrent state",
        "llama.cpp",
        "ggml-org/llama.cpp/issues/26695",
        "The case of everything in the last batch passes the check, but restores nothing.",
        "Rolling a decode step back left the model's state changed, and later output differed.",
    ),
    Bug(
        "B89",
        "A request takes the tree's state for its own fork",
        "sglang",
        "sgl-project/sglang/pull/11214",
        "After an insert, the second match may end at a sibling request's node, and its state is compared "
        "as if it were one's own.",
        "Found in review: two requests of one batch made the second fail an assertion on a state that was "
        "not its own.",
    ),
    Bug(
        "B91",
        "The reserved slot can be freed and is then handed out",
        "mllm",
        f"{_MLLM}mem_cache/memory_pool.py",
        "Nothing in free asks whether a slot is below the first usable one.",
        "After free of slot 0, an allocation of five returned the slots 0 to 4.",
        RUN,
        version="commit b9c30702",
    ),
    Bug(
        "B92",
        "A free by segments lacks the filter of the reserved slot",
        "sglang",
        "sgl-project/sglang/pull/38269",
        "Slots without a window half map to slot 0; the older path drops these, the new one of fixed shape"
        " does not.",
        "Page 0 of the window pool was freed over and over; the fault lay ready for a change of one line "
        "elsewhere.",
    ),
    Bug(
        "B94",
        "A free group stays open after an exception",
        "mllm",
        f"{_MLLM}mem_cache/memory_pool.py",
        "The begin and the end are a manual pair, and an error between them leaves the group open.",
        "Not reported, read in the code: all later frees pile up, and the available size only falls.",
        CODE,
        version="commit b9c30702",
    ),
    Bug(
        "B95",
        "Pages are handed out beyond the end of the KV buffer",
        "mllm",
        f"{_MLLM}mem_cache/memory_pool.py",
        "Pages count from 1, so their slots reach size plus page, but the buffer has size plus one rows.",
        "With 64 slots in pages of 16, slot 79 was handed out for a buffer of 72 rows: a write out of "
        "bounds.",
        RUN,
        version="commit b9c30702",
    ),
    Bug(
        "B97",
        "Two frees side by side both return the page at their seam",
        "sglang",
        "sgl-project/sglang/pull/38941",
        "A finished request's tail goes back in two pieces, and each is widened to whole pages.",
        "Every scheduler died within a minute of requests that share prefixes.",
    ),
    Bug(
        "B98",
        "A retraction rounds its range up and loses a page",
        "sglang",
        "sgl-project/sglang/pull/4977",
        "The beginning of the range to be freed is moved up to the next page instead of down.",
        "Slots leaked with each retraction whose prefix did not end with a page.",
    ),
    Bug(
        "B100",
        "The totals balance while a page has two owners",
        "sglang",
        "sgl-project/sglang/pull/27731",
        "Free plus held equals the total also where one page is held twice and another by nobody.",
        "Leaks were reported long after their cause, three wrong steps later.",
    ),
    Bug(
        "B101",
        "Duplicates are freed while the request's row still names them",
        "mini-sglang",
        "sgl-project/mini-sglang/pull/142",
        "The insert finds the prefix in the tree and frees the request's own copy; the row is not pointed "
        "at the tree's.",
        "Later decode steps read pages that belonged to other requests.",
    ),
    Bug(
        "B103",
        "A cache that stores nothing is counted as a cache",
        "mllm",
        "UbiquitousLearning/mllm/commit/023f7f20510c5577fc636c56fa07bdba5b99afa6",
        "Whether there is a cache object decides whether an insert took ownership, and the cache without "
        "reuse takes nothing.",
        "With the radix cache switched off, every request leaked its slots.",
        COMMIT,
    ),
    Bug(
        "B104",
        "Blocks are recycled more than once",
        "FastDeploy",
        "PaddlePaddle/FastDeploy/pull/3710",
        "Two paths return the same blocks; the text read gives no details.",
        "Scheduling errors appeared as soon as the prefix cache was on.",
    ),
    Bug(
        "B118",
        "A shared block that is released twice in one call counts once",
        "Megatron-LM",
        "NVIDIA/Megatron-LM/commit/2576c159d4dddf177853129ad4f03cb2e339bc0a NVIDIA/Megatron-LM/pull/6047",
        "A subtraction by index applies once for each distinct index, and the list of returned blocks "
        "keeps its repetitions.",
        "Blocks that were shared by requests of one step kept a reference for ever, or went back twice.",
        COMMIT,
    ),
    Bug(
        "B119",
        "A block is evicted before its descendant",
        "Megatron-LM",
        "NVIDIA/Megatron-LM/commit/52cf20d06a22cf0ba26033722b7c5f0442f33ad8 NVIDIA/Megatron-LM/pull/5822",
        "Earlier blocks of a prompt are older, so oldest first removes the ancestor.",
        "The index kept children whose parents were gone, and later hits found them.",
        COMMIT,
    ),
    Bug(
        "B121",
        "A hit stays pinned when the rest cannot be allocated",
        "vLLM",
        "vllm-project/vllm/pull/11565",
        "The blocks are touched before the capacity is checked, and a refusal does not undo that.",
        "The engine stopped on the assertion that something must be schedulable.",
    ),
    Bug(
        "B122",
        "Registering a block twice counts its parent's child twice",
        "Megatron-LM",
        "NVIDIA/Megatron-LM/commit/ee3864907a6b2973e742839c31643110b7e3aa9c NVIDIA/Megatron-LM/pull/5995",
        "A later chunk rightly offers a block that is registered already, but the books count it anew.",
        "The parent never became a leaf again and could not be evicted.",
        COMMIT,
    ),
    Bug(
        "B124",
        "An observer is called before the books are written",
        "Megatron-LM",
        "NVIDIA/Megatron-LM/commit/3fe15193cf95c1c552b6a288fa0cb07c6b5aca24 NVIDIA/Megatron-LM/pull/5860",
        "The callback of the state slots runs between removing the hashes and returning the blocks.",
        "A callback that failed left the allocator half updated.",
        COMMIT,
    ),
    Bug(
        "B125",
        "An evicted block stays in the index of cached ones",
        "vLLM",
        "vllm-project/vllm/pull/4764",
        "Leaving the evictor and leaving the index are two steps, and one is missing.",
        "A freed and rewritten block was still found: wrong KV.",
    ),
    Bug(
        "B127",
        "A second block with the same hash is dropped from the index",
        "kvcached",
        "ovg-project/kvcached/issues/401",
        "The index holds one block per hash and takes the second for a repetition of the first.",
        "Two requests computed one prefix at the same time, and the engine died because a cached block had"
        " no entry.",
    ),
    Bug(
        "B128",
        "Removing one of two equal blocks removes the survivor's entry",
        "Megatron-LM",
        "NVIDIA/Megatron-LM/commit/d98e8a64ddf34856e74b24714e3bedb2f5a39553",
        "The maps hold one block per hash, and a removal takes the hash away without asking which block it"
        " names.",
        "Not reported, read in the code: a block that is still valid is no longer found, and its state is "
        "not invalidated.",
        CODE,
    ),
    Bug(
        "B130",
        "A hash is published before its KV exists",
        "nano-vllm",
        "GeeeekExplorer/nano-vllm/commit/f64d821c2057e2f45d0accccf5b39fd6c1438473",
        "Blocks are registered when they are allocated and not after the step that fills them.",
        "With chunked prefill, other requests could hit blocks that had not been computed; read from the "
        "correction.",
        COMMIT,
    ),
    Bug(
        "B131",
        "A block that is used again keeps its old hash",
        "nano-vllm",
        "GeeeekExplorer/nano-vllm/commit/f64d821c2057e2f45d0accccf5b39fd6c1438473",
        "Taking a block from the free list does not delete its entry in the index.",
        "Stale entries; only the comparison of tokens kept wrong output away.",
        COMMIT,
    ),
    Bug(
        "B133",
        "Null blocks and repetitions reach the free queue",
        "unified-cache-management",
        "ModelEngine-Group/unified-cache-management/pull/1053",
        "Window layouts put one null block into a list many times, and the release does not filter it.",
        "The free queue was corrupted, and a later allocation failed.",
    ),
    Bug(
        "B134",
        "Blocks that a request is about to use count as free",
        "vLLM",
        "vllm-project/vllm/pull/6849",
        "Cached blocks without references are counted both as free and as already there.",
        "A swap was admitted into the very blocks that it needed.",
    ),
)
