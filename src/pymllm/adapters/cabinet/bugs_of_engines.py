"""Bugs of engines: rows and lives of requests, what the device sees, and further tiers."""

from __future__ import annotations

from pymllm.adapters.cabinet.fault import CODE, COMMIT, RUN, Bug

_MLLM = "UbiquitousLearning/mllm/blob/b9c307020b2e200ea43cd67747d1581e4eba85fd/pymllm/"

BUGS = (
    Bug(
        "B106",
        "The row of a request is freed between two of its chunks",
        "sglang-jax",
        "sgl-project/sglang-jax/commit/00c60d51d28245abbedc4ef2898373014ac8fa15 "
        "sgl-project/sglang-jax/pull/1008",
        "The row is returned and taken anew with each chunk, so that another request may get it in between.",
        "Near capacity, another request wrote the row while the previous forward pass was still reading it.",
        COMMIT,
    ),
    Bug(
        "B107",
        "Rows of finished requests are not cleared",
        "Megatron-LM",
        "NVIDIA/Megatron-LM/commit/115785f558a9a664b79b877d2894fc25fa78a24a",
        "The request's row of the block table keeps its numbers when the request completes.",
        "Later owners of the row inherited blocks of finished requests.",
        COMMIT,
    ),
    Bug(
        "B109",
        "An abort does not reach a request between two chunks",
        "sglang-jax",
        "sgl-project/sglang-jax/pull/984",
        "Aborts mark running requests, and a request between two chunks is in no list.",
        "The leak check stopped the server after an abort during a chunked prefill.",
    ),
    Bug(
        "B110",
        "Every chunk of a prefill takes a second set of resources",
        "sglang",
        "sgl-project/sglang/pull/1858",
        "The next round of a request that is under way is initialised as if it were new.",
        "KV leaked with chunked prefill; the first correction was reverted because it leaked in overlapped"
        " mode.",
    ),
    Bug(
        "B112",
        "Blocks are allocated for a batch that is then dropped",
        "text-generation-inference",
        "huggingface/text-generation-inference/commit/c1fe28d694757a6a90426a83006292dc76512f66 "
        "huggingface/text-generation-inference/pull/2498",
        "The blocks are taken before the last check that can still say no.",
        "A batch below its minimum size went back to the queue, and its blocks stayed taken.",
        COMMIT,
    ),
    Bug(
        "B113",
        "A sequence leaves before its blocks are registered",
        "TensorRT-LLM",
        "NVIDIA/TensorRT-LLM/pull/15018",
        "Blocks of a sequence that is removed early stay allocated and untracked, and are recycled as if "
        "they held their old content.",
        "Under a rising load completions came back empty until a restart, as stale KV spread through the "
        "tree.",
    ),
    Bug(
        "B115",
        "A hit on the whole prompt leaves nothing to compute",
        "nano-vllm",
        "GeeeekExplorer/nano-vllm/issues/144",
        "The match may cover every token, but the next token's logits need at least one forward step.",
        "Attention failed with no query where a prompt of whole blocks was cached; one token left over "
        "misled other engines' kernels.",
    ),
    Bug(
        "B116",
        "Row 0 is a real request and the state pool's padding",
        "mllm",
        f"{_MLLM}mem_cache/memory_pool.py",
        "One pool counts from 0, the other keeps 0 for padding, and the same number indexes both.",
        "Two rows were handed out as 0 and 1; padded rows would overwrite a live request's recurrent state.",
        RUN,
        version="commit b9c30702",
    ),
    Bug(
        "B148",
        "Padding of -1 is used as an index",
        "vLLM",
        "vllm-project/vllm/issues/43810",
        "Quotient and remainder of -1 are valid negative indices.",
        "64 padded rows overwrote the last live slot, deterministically.",
    ),
    Bug(
        "B149",
        "Poison in the padding slot reaches real outputs",
        "sglang",
        "sgl-project/sglang/pull/35351",
        "Padded lanes write undefined values to slot 0, which is read back and multiplied by a mask of zero.",
        "Production crashed with NaN, as zero times NaN is NaN.",
    ),
    Bug(
        "B151",
        "Padding shares state slots with requests that are set aside",
        "TensorRT-LLM",
        "NVIDIA/TensorRT-LLM/pull/13278",
        "Dummies have no slots of their own, and stale entries at the end of an index are written through.",
        "Live recurrent states were corrupted in graphs with speculation.",
    ),
    Bug(
        "B152",
        "Padded rows of a graph keep the previous batch's numbers",
        "mllm",
        f"{_MLLM}executor/cuda_graph_runner.py {_MLLM}layers/attention/gdn_backend.py",
        "The buffer of row numbers is overwritten for the real batch only, and the state kernel uses all "
        "of it.",
        "Not reported, read in the code: a padded step advances the state of a request that is not in the "
        "batch.",
        CODE,
        version="commit b9c30702",
    ),
    Bug(
        "B154",
        "The padding dummy is allocated when it is first needed",
        "TensorRT-LLM",
        "NVIDIA/TensorRT-LLM/pull/16072",
        "By then the cache may be full.",
        "Under load, graphs were silently lost for the rest of the process.",
    ),
    Bug(
        "B155",
        "Two sides disagree about the type of an index",
        "Megatron-LM",
        "NVIDIA/Megatron-LM/commit/e513ec409d981cbfc9a6572574eac4180e8dd2d8 NVIDIA/Megatron-LM/pull/4855",
        "A shared byte buffer laid fields out as int32 that must be int64.",
        "The change does not say what was seen; consumers got index tensors of the wrong width.",
        COMMIT,
    ),
    Bug(
        "B157",
        "A staging buffer is rewritten while it is being copied",
        "Megatron-LM",
        "NVIDIA/Megatron-LM/commit/53a2dd56fec6bd0938bedf0207cce052944f3bcf NVIDIA/Megatron-LM/pull/5715",
        "The copy is asynchronous, and the buffer is filled in place for the next step.",
        "Graph warm-up failed with an illegal access, as the device read the next step's indices.",
        COMMIT,
    ),
    Bug(
        "B158",
        "Host pages are freed twice by a prefetch",
        "sglang",
        "sgl-project/sglang/issues/13483",
        "Two functions of one flow release the same remaining range.",
        "Host memory was corrupted; a detector was added later.",
    ),
    Bug(
        "B160",
        "A split during a backup loses a fragment",
        "sglang",
        "sgl-project/sglang/pull/16946",
        "The pending operation names a node, which after the split is the lower half only.",
        "Part of the KV was never backed up, or never announced.",
    ),
    Bug(
        "B161",
        "A child is backed up whose parent's backup failed",
        "sglang",
        "sgl-project/sglang/pull/22062",
        "The failure is silent, and nothing keeps a backed-up child from having a parent without a backup.",
        "Under load, an eviction failed an assertion because a node was no leaf.",
    ),
    Bug(
        "B163",
        "Evicted objects are freed a second time by their owner",
        "LMCache",
        "LMCache/LMCache/pull/993",
        "Eviction frees what its owner frees, too, and takes pinned objects along.",
        "The hit rate fell to zero over hours with 100 GB configured.",
    ),
    Bug(
        "B164",
        "The matched block is the next one that is handed out",
        "TensorRT-LLM",
        "NVIDIA/TensorRT-LLM/pull/8830",
        "Making room for the match takes the match itself from the head of the free queue.",
        "The author of the correction describes a corner case: another block's state is reused instead of "
        "the matched one.",
    ),
)
