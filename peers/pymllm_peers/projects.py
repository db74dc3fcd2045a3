"""The checkouts that adapters read, and the versions with which they were tried."""

from __future__ import annotations

from pymllm_peers.checkouts import Checkout

MLLM = Checkout(
    project="mllm",
    variable="PYMLLM_MLLM",
    package="pymllm",
    commit="b9c3070",
    digests={
        "pymllm/mem_cache/base_prefix_cache.py": (
            "7530d9678a9f19be78868720b7881041819671a50c6f925f10069127216d722a"
        ),
        "pymllm/mem_cache/chunk_cache.py": (
            "be713905f3182ddaeaacf74fb4c49e1ac013616e36a8a2ea1057e141cd9f18e6"
        ),
        "pymllm/mem_cache/mamba_radix_cache.py": (
            "be86f05ee6cd15dcd64ebb0ba1fa54df45e08c3b4754a54afcf3b58cc2bec92b"
        ),
        "pymllm/mem_cache/memory_pool.py": (
            "4080a6e25b98bbf9ec0536ac80107ecb8480dbf7ea8b2b10c7016cfff111d259"
        ),
        "pymllm/mem_cache/radix_cache.py": (
            "381b494b09b5b14b44c32e2652128a3a513efbba2a8124aaf06375b2cac633de"
        ),
    },
    stand_ins={"mllm_kernel": "kernels that store KV on a GPU"},
)
"""UbiquitousLearning/mllm, June 2026."""

_CONTEXTS = "megatron/core/inference/contexts"

MEGATRON = Checkout(
    project="Megatron-LM",
    variable="PYMLLM_MEGATRON",
    package="megatron",
    commit="d98e8a6",
    digests={
        f"{_CONTEXTS}/kv_block_allocator.py": (
            "77e8c2bd292deae5642558399e186f4ed45725dbad5ce19abab68ea2534118c6"
        ),
        f"{_CONTEXTS}/mamba_slot_allocator.py": (
            "e293ca36f5c3ae02651969b5fca4fa80d1e13105c2ca57d623bd504f5e310d5a"
        ),
    },
    stand_ins={
        "megatron.core.process_groups_config": "groups of processes, which the configuration's types name",
        "megatron.core.transformer": "models, which the same types name",
        "megatron.core.utils": "what looks for the attributes of a model",
    },
)
"""NVIDIA/Megatron-LM, August 2026."""

_CACHES = "python/minisgl/kvcache"

MINISGL = Checkout(
    project="mini-sglang",
    variable="PYMLLM_MINISGL",
    package="minisgl",
    commit="20fcd7f",
    digests={
        f"{_CACHES}/__init__.py": "7c41ed4405c6680820bd4a3d1592f81712e8bb2de3b3132cffae4d330f7f45dd",
        f"{_CACHES}/base.py": "1431987bd1cd5c1a3fc04dfd08957928b9c33ccfc04ba0a13b9a140a4029ad8b",
        f"{_CACHES}/naive_cache.py": "6081459a29dffb4f8d602a563287b537a2268fe0f06bb1d509de9e0a24746dce",
        f"{_CACHES}/radix_cache.py": "04dbe036c86565ae39b3ce8bbddf8bfaf1b5b1def795c59d8680504ca42982d8",
        "python/minisgl/core.py": "76697c4f0026c860d77b7154ac3ff9e26606a77f6a3f30570cb348d506de1edd",
        "python/minisgl/scheduler/cache.py": (
            "09a267c1dad7a0d01eb5bc38b56442c1239ac10849faaa5c8f1fe809cf94c6d2"
        ),
        "python/minisgl/scheduler/table.py": (
            "9d688250aabbba7b0ac6193fdfadc735b95e3aebbdb664494d71b3ee75fc380a"
        ),
    },
    stand_ins={
        "minisgl.utils.arch": "which GPU there is",
        "minisgl.utils.hf": "models and tokenizers",
        "minisgl.utils.logger": "a server's log",
        "minisgl.utils.mp": "queues between processes",
        "minisgl.utils.torch_utils": "dtypes of a model, and marks for a profiler",
    },
    root="python",
    entered=frozenset({"minisgl.kvcache", "minisgl.utils"}),
)
"""sgl-project/mini-sglang, August 2026."""

NANOVLLM = Checkout(
    project="nano-vllm",
    variable="PYMLLM_NANOVLLM",
    package="nanovllm",
    commit="bb823b3",
    digests={
        "nanovllm/engine/block_manager.py": (
            "d0240374f589eaa85c4c7923b8970f2635ab7bc73adc5044fa2d273955b54242"
        ),
        "nanovllm/engine/sequence.py": "d5bb5c522d22554b5c36de745150ec8b601827ee0388058404dcceef1ae8290d",
        "nanovllm/sampling_params.py": "1e5146d1a06f5230ab049df1ea24814a1d73ba52c3ad22af04bd0f1c6293e0c0",
    },
)
"""GeeeekExplorer/nano-vllm, June 2026."""

_ENGINE = "lmdeploy/pytorch"
_PAGING = f"{_ENGINE}/paging"

LMDEPLOY = Checkout(
    project="lmdeploy",
    variable="PYMLLM_LMDEPLOY",
    package="lmdeploy",
    commit="1263d5c",
    digests={
        f"{_ENGINE}/block.py": "7dc04e84c913df42a1b18c1307b29dd9d3c7e5b6d4ad327937eda86e528ae9a3",
        f"{_ENGINE}/messages.py": "0351337ba5be56d3354f8cfa76bfe5452aee9514dc3aeb1549d39ab15d0cb3c8",
        f"{_ENGINE}/multimodal/data_type.py": (
            "40d2795ae2ff4b0638481269acef24148a875bf1a4a62dead255e208bb5d3abf"
        ),
        f"{_PAGING}/block_manager/base_block_manager.py": (
            "80471e12ed47e579b05623a5aa5375df2f66b340d19ae314a6dd251432d5e9c3"
        ),
        f"{_PAGING}/block_manager/default_block_manager.py": (
            "5380c19cafa7a65c05d28b9e04342c3990ed76a3aa9f50d100def904d9a113a2"
        ),
        f"{_PAGING}/block_trie/checkpoint.py": (
            "41ee6a1c4eb1c733dc6a840eeb830e0b0909aab0805bd868d0341c89121a8e45"
        ),
        f"{_PAGING}/block_trie/checkpoint_lifecycle.py": (
            "284b44254474ca29ec0780f9e7ab872ecbd7a5ebe4d3212f338bbf2b0d9ea5ae"
        ),
        f"{_PAGING}/block_trie/kv_lifecycle.py": (
            "6f2b1b9cb4c0974af2e1afdb01ee61889100010597e563cb11a9a6b496ec18bd"
        ),
        f"{_PAGING}/block_trie/node.py": "b51d58a29b95eeee2981e55035011df74ea76787f35fbd31529a5530084efef5",
        f"{_PAGING}/block_trie/trie.py": "992ba7fabfbc675acd392391d7616dbed00e468315bd44ac647a042033011a4a",
        f"{_PAGING}/state_manager.py": "50bf6f563d2bd16a61b4ac31e690e9460d67f7d5bea3acda33f28f3e5c69480c",
        f"{_ENGINE}/prefix_cache_state.py": (
            "0da69e2755404ec39503b8c21b8abc2a21cd3a7b18e88a2e59cd65fbe3eaf333"
        ),
        f"{_ENGINE}/strategies/ar/sequence.py": (
            "3d2a5fd0feb313de05329a677678445879da03f6c5dfce119c1b84f61832fa27"
        ),
        f"{_ENGINE}/strategies/base/sequence.py": (
            "f2b81c603751422c60118767ff82638260fa544bfb894c0efcdf974161f617c7"
        ),
        "lmdeploy/vl/constants.py": "fa02f7730c666bfed45c43ab7b70c801e31d0f85139b4717585f92f1e1624660",
    },
    stand_ins={
        "lmdeploy.messages": "what a server is asked, and tells",
        "lmdeploy.pytorch.config": "the configuration of a model",
        "lmdeploy.pytorch.disagg": "engines that compute prompts for others",
        "lmdeploy.pytorch.engine": "what runs a model",
        "lmdeploy.pytorch.model_inputs": "tensors on their way to a GPU",
    },
)
"""InternLM/lmdeploy, August 2026."""

SCALELLM = Checkout(
    project="ScaleLLM",
    variable="PYMLLM_SCALELLM",
    package="",
    commit="ffee4ff",
    digests={
        "src/common/slice.h": "7b4d1dc115c27da4a46ed0af3f1b46d4d580b5e8fd3dd1f0ba28be3f4aff0fde",
        "src/memory/block.h": "6a33259bb1f1fa1d8364f3bf53638d674c6b4740836d97a33680c8a12b6de77d",
        "src/memory/block.cpp": "404dfbc662f794a95fe159ed38955ad629525ff5cd4f7d24407df0b277c6ec1a",
        "src/memory/block_allocator.h": "317d1ec10a1e995585ed98c52f89a52cada81cf3c637230aee965249d72f99ee",
        "src/memory/block_allocator.cpp": "a493bae87d7939e541093717837cef478554d1d31df743c565ba2a1d936abf37",
        "src/memory/prefix_cache.h": "6778d60c4375aa5f024b9448cad278285e757b015ed53775770280bd4efa0fa7",
        "src/memory/prefix_cache.cpp": "85cb96f319027103622effb3e983a68b98c7fc8732dc025599bda9a569df43d0",
    },
)
"""vectorch-ai/ScaleLLM, in C++."""

AIBRIX = Checkout(
    project="aibrix",
    variable="PYMLLM_AIBRIX",
    package="",
    commit="e3e10f9",
    digests={
        "pkg/utils/syncprefixcacheindexer/events.go": (
            "a61ada7b256924ed91e31e5b476529eedbb8313fa0339953ba333f8fcae4d35c"
        ),
        "pkg/utils/syncprefixcacheindexer/sync_hash.go": (
            "921fbf3a6c6bc57739121618816ef66a177eb56c5db74418feff4934e18d0868"
        ),
    },
)
"""vllm-project/aibrix, in Go."""

LLMD = Checkout(
    project="llm-d-kv-cache",
    variable="PYMLLM_LLMD",
    package="",
    commit="7be76e1",
    digests={
        "pkg/kvcache/backend.go": "5f40215c60873df0ae00252fc35ad473f0c76d09b4424ddd780a7255a5ada81e",
        "pkg/kvcache/kvblock_scorer.go": "2ac988a847b207604253ea4f1588903d257961b26ac47a49a1bd977d74d260b7",
        "pkg/kvcache/kvblock/extra_keys.go": (
            "907c188abe7f79d8640a3f69580be91e73ec45506fc24ac27436cf37a72e4d4f"
        ),
        "pkg/kvcache/kvblock/hma.go": "67cc65d74caff7614b2d8c99dc91e7f40bad90109dca2bf136a88ca0e6f623da",
        "pkg/kvcache/kvblock/in_memory.go": (
            "eddceeee04124a8192653b508463ecdb09c112e3d2c32dffa2fd8cf96d536fdd"
        ),
        "pkg/kvcache/kvblock/index.go": "f0038ade10b890555ef8dff6b20078f6a9c03eb2c702ea8d15fec5ff23c26760",
        "pkg/kvcache/kvblock/token_processor.go": (
            "e0ecc27a4c0e0f22d4d8744b8dbb508134469c85757f9bcc693eb336dc0930e5"
        ),
        "pkg/kvevents/events.go": "9b20b8d683d869d740109c90e43e336ba0bfe4faed655ba587cd8c1eabd5fdf6",
        "pkg/kvevents/pool.go": "bd42cb0127d33621a5576c8fe66765dc8927d7f207eef2a9c2436f0843c69e09",
        "pkg/utils/logging/levels.go": "ffe15f89a2da90c46d0760ab6c304aee447ebcfcbb4b656cda285775f6c8ae11",
        "pkg/utils/slices.go": "2e2a9d192e3a43e6ed8d84db659fc68daec5386cfc3c380c96dad9832ca65183",
    },
)
"""llm-d/llm-d-kv-cache, in Go."""

CHECKOUTS = (MLLM, MEGATRON, MINISGL, NANOVLLM, LMDEPLOY, SCALELLM, AIBRIX, LLMD)
"""All of them."""
