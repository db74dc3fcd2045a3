"""Adapters of other projects' caches: sglang, vLLM, LMCache, dynamo, and checkouts of eight more projects.

`ADAPTERS` is what the entry point of this distribution names, so that ``pymllm adapters`` lists them. A
project is imported when an adapter of it is used, and an adapter refuses a version that it was not tried
with.
"""

from __future__ import annotations

from pymllm.adapters.entry import AdapterEntry
from pymllm_peers import projects
from pymllm_peers.compiled import TOOLS

_PEERS = {
    "sglang-radix": ("sglang.caches:SglangRadix", "sglang's RadixCache"),
    "sglang-unified": ("sglang.caches:SglangUnified", "sglang's unified tree in Python"),
    "sglang-unified-swa": (
        "sglang.caches:SglangUnifiedSWA",
        "sglang's unified tree in Python, with a sliding window",
    ),
    "sglang-rust": ("sglang.caches:SglangRust", "sglang's unified tree in Rust"),
    "sglang-rust-swa": (
        "sglang.caches:SglangRustSWA",
        "sglang's unified tree in Rust, with a sliding window",
    ),
    "sglang-unified-mamba": (
        "sglang.mamba:SglangUnifiedMamba",
        "sglang's unified tree in Python, with recurrent states",
    ),
    "sglang-rust-mamba": (
        "sglang.mamba:SglangRustMamba",
        "sglang's unified tree in Rust, with recurrent states",
    ),
    "sglang-mamba": ("sglang.mamba:SglangMamba", "MambaRadixCache of an older sglang (0.5.15)"),
    "sglang-swa": ("sglang.caches:SglangSWA", "SWARadixCache of an older sglang (0.5.15)"),
    "sglang-token": ("sglang.slots:SglangTokenSlots", "sglang's TokenToKVPoolAllocator"),
    "sglang-paged": ("sglang.slots:SglangPagedSlots", "sglang's PagedTokenToKVPoolAllocator"),
    "sglang-swa-allocator": ("sglang.slots:SglangSWASlots", "sglang's SWATokenToKVPoolAllocator"),
    "sglang-rows": ("sglang.slots:SglangRows", "sglang's ReqToTokenPool"),
}
_VLLM = {
    "vllm-blocks": ("vllm.blocks:VllmBlocks", "vLLM's BlockPool"),
    "vllm-hybrid-mamba": (
        "vllm.hybrid:VllmMamba",
        "vLLM's KVCacheManager with full attention and Mamba layers",
    ),
    "vllm-hybrid-window": (
        "vllm.hybrid:VllmWindow",
        "vLLM's KVCacheManager with full attention and layers with a sliding window",
    ),
    "vllm-full": ("vllm.manager:VllmFull", "vLLM's KVCacheManager with one group of full attention"),
}
_LMCACHE = {
    "lmcache-chunks": ("lmcache.chunks:LMCacheChunks", "LMCache's TensorMemoryAllocator, with equal chunks"),
    "lmcache-pages": ("lmcache.chunks:LMCachePages", "LMCache's PagedTensorMemoryAllocator"),
}
_OLDER = ("sglang-mamba", "sglang-swa")
_MLLM = {
    "mllm-radix": ("mllm.caches:MllmRadix", "mllm's RadixCache"),
    "mllm-radix-window": ("mllm.caches:MllmWindowedRadix", "mllm's RadixCache with a sliding window"),
    "mllm-mamba": ("mllm.caches:MllmMamba", "mllm's MambaRadixCache"),
    "mllm-chunk": ("mllm.caches:MllmChunk", "mllm's ChunkCache"),
    "mllm-slots": ("mllm.pools:MllmSlots", "mllm's TokenToKVPoolAllocator"),
    "mllm-rows": ("mllm.pools:MllmRows", "mllm's ReqToTokenPool"),
    "mllm-buffers": ("mllm.pools:MllmBuffers", "mllm's KVPool"),
    "mllm-states": ("mllm.pools:MllmStates", "mllm's GDNPool"),
    "mllm-hashes": ("mllm.pools:MllmHashes", "mllm's RadixKey and hash functions"),
}

_DYNAMO = AdapterEntry(
    "dynamo-index",
    f"{__name__}.dynamo.radix_tree:DynamoIndex",
    "dynamo's RadixTree, the index behind its router",
    "dynamo",
    "ai-dynamo-runtime",
    "tox -e peers-dynamo installs it, or pip install --no-deps -r peers/constraints/peers-dynamo.txt",
)
_MEGATRON = {
    "megatron-blocks": (
        "megatron.blocks:MegatronBlocks",
        "Megatron-LM's KVBlockAllocator and MambaSlotAllocator",
    ),
}
_MINISGL = {
    "minisgl-radix": ("minisgl.caches:MinisglRadix", "mini-sglang's CacheManager with its RadixPrefixCache"),
    "minisgl-naive": ("minisgl.caches:MinisglNaive", "mini-sglang's CacheManager with its NaivePrefixCache"),
    "minisgl-slots": ("minisgl.caches:MinisglSlots", "mini-sglang's CacheManager as an allocator of pages"),
    "minisgl-rows": ("minisgl.caches:MinisglRows", "mini-sglang's TableManager"),
}
_NANOVLLM = {
    "nano-blocks": ("nanovllm.blocks:NanoBlocks", "nano-vllm's BlockManager as a prefix cache"),
}
_LMDEPLOY = {
    "lmdeploy-trie": ("lmdeploy.caches:LmdeployTrie", "lmdeploy's BlockTrie over its DefaultBlockManager"),
    "lmdeploy-blocks": ("lmdeploy.caches:LmdeployBlocks", "lmdeploy's LogicalAllocator of blocks"),
}
_SCALELLM = {
    "scale-prefix": ("scalellm.caches:ScalePrefix", "ScaleLLM's PrefixCache over its BlockAllocator, in C++"),
    "scale-slots": ("scalellm.caches:ScaleSlots", "ScaleLLM's BlockAllocator, in C++"),
}
_AIBRIX = {"aibrix-index": ("routers.indexes:AibrixIndex", "aibrix's SyncPrefixHashTable, in Go")}
_LLMD = {"llmd-index": ("routers.indexes:LlmdIndex", "llm-d's InMemoryIndex, in Go")}
_CHECKOUTS = (
    (projects.MLLM, _MLLM),
    (projects.MEGATRON, _MEGATRON),
    (projects.MINISGL, _MINISGL),
    (projects.NANOVLLM, _NANOVLLM),
    (projects.LMDEPLOY, _LMDEPLOY),
    (projects.SCALELLM, _SCALELLM),
    (projects.AIBRIX, _AIBRIX),
    (projects.LLMD, _LLMD),
)
_NEEDED = {"PYMLLM_NANOVLLM": "xxhash"}
_TOOLS = {"PYMLLM_SCALELLM": "g++", "PYMLLM_AIBRIX": "go", "PYMLLM_LLMD": "go"}


def _install(environment: str) -> str:
    pins = "peers-alone" if environment == "peers" else environment
    return (
        f"tox -e {environment} installs it, or pip install -r peers/constraints/peers.txt && "
        f"pip install --no-deps -r peers/constraints/{pins}.txt"
    )


ADAPTERS: tuple[AdapterEntry, ...] = (
    *(
        AdapterEntry(
            name,
            f"{__name__}.{place}",
            summary,
            "sglang",
            install=_install("peers-older" if name in _OLDER else "peers"),
            needs_torch=True,
        )
        for name, (place, summary) in _PEERS.items()
    ),
    *(
        AdapterEntry(
            name, f"{__name__}.{place}", summary, package, install=_install("peers"), needs_torch=True
        )
        for package, adapters in (("vllm", _VLLM), ("lmcache", _LMCACHE))
        for name, (place, summary) in adapters.items()
    ),
    _DYNAMO,
    *(
        AdapterEntry(
            name,
            f"{__name__}.{place}",
            summary,
            _NEEDED.get(checkout.variable, ""),
            install=_install("peers"),
            checkout=checkout,
            tool=_TOOLS.get(checkout.variable, ""),
            tool_from=TOOLS.get(_TOOLS.get(checkout.variable, ""), ""),
            needs_torch=not place.startswith(("routers.", "scalellm.")),
        )
        for checkout, adapters in _CHECKOUTS
        for name, (place, summary) in adapters.items()
    ),
)
"""Other people's, loaded when built: ``tox -e peers`` installs the package, ``peers-older`` an older one."""
