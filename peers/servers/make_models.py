"""Three tiny models with random weights: folders for vLLM, and files for llama.cpp where its source is named.

::

    python peers/servers/make_models.py FOLDER [--llama-cpp SOURCE]

``dense`` is a Llama, ``window`` a Gemma 3 whose layers see 64 tokens, five of six of them, ``hybrid`` a
Falcon-H1 with attention and recurrent states. Weights are large, so that one wrong token moves a
log-probability by 0.1 and more. The vocabulary is ASCII, with ids of its printable characters: the server of
llama.cpp tells no log-probabilities for tokens that end inside a character.
"""

from __future__ import annotations

import argparse
import itertools
import string
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    FalconH1Config,
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

VOCABULARY = 320
WINDOW = 64
_SPREAD = 0.09  # standard deviation of the weights
_SPECIAL = ("<unk>", "<s>", "</s>")
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}


def configurations() -> dict[str, PreTrainedConfig]:
    """Return the architectures by their names."""
    layers = ["full_attention" if at == 5 else "sliding_attention" for at in range(6)]
    window = {"sliding_window": WINDOW, "layer_types": layers, "query_pre_attn_scalar": 64}
    states = {"mamba_d_ssm": 256, "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16}
    return {
        "dense": LlamaConfig(**_COMMON, num_hidden_layers=4),
        # llama.cpp takes the pattern of Gemma's layers for granted, and that its output is its input.
        "window": Gemma3TextConfig(
            **(_COMMON | {"tie_word_embeddings": True}), num_hidden_layers=6, **window
        ),
        "hybrid": FalconH1Config(**_COMMON, num_hidden_layers=4, **states, mamba_chunk_size=32),
    }


def make_model(config: PreTrainedConfig, folder: Path, seed: int = 0) -> None:
    """Write a model with its tokenizer, as Hugging Face's libraries read it."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for values in model.parameters():
            if values.dim() > 1:  # norms and the constants of states stay
                values.normal_(0, _SPREAD, generator=generator)
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose printable characters have their own codes, and pairs of letters the others."""
    pairs = ("".join(pair) for pair in itertools.product(string.ascii_lowercase, repeat=2))
    tokens = dict(zip(_SPECIAL, itertools.count(), strict=False))
    for id in range(len(_SPECIAL), VOCABULARY):
        # U+0120 stands for a space in such vocabularies.
        tokens[chr(id).replace(" ", "\u0120") if 32 <= id < 127 else next(pairs)] = id
    merges = [(token[0], token[1]) for token in tokens if len(token) == 2]
    tokenizer = Tokenizer(models.BPE(tokens, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    unknown, begin, end = _SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=unknown, bos_token=begin, eos_token=end, pad_token=unknown
    )


def convert(folder: Path, file: Path, source: Path) -> None:
    """Write a model as llama.cpp reads it, by the script of the same release."""
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    import convert_hf_to_gguf
    from conversion.base import TextModel

    # It knows tokenizers by hashes of what they make of a text; this one is nobody's.
    TextModel.get_vocab_base_pre = lambda *_: "gpt-2"
    sys.argv = ["convert_hf_to_gguf.py", str(folder), "--outtype", "f32", "--outfile", str(file)]
    convert_hf_to_gguf.main()


def main() -> None:
    """Make all three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--llama-cpp", type=Path, metavar="SOURCE", help="source of llama.cpp")
    asked = parser.parse_args()
    for name, config in configurations().items():
        make_model(config, asked.folder / name)
        if asked.llama_cpp is not None:
            convert(asked.folder / name, asked.folder / f"{name}.gguf", asked.llama_cpp.resolve())


if __name__ == "__main__":
    main()
