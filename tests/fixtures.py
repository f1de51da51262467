"""Models small enough to compute by hand, and a tokenizer without merges. No download, seconds.

TINY     random weights, attention that matters: shows faults of masks, positions and caches
MARKOV   the next token's distribution is exactly a given row: shows faults of sampling
RING     MARKOV with next = t + 1: exact heads exist, so block lengths are known beforehand
SCRIPT   RING in the order of the tokens of a text
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from entmtp.target import TargetModel

ARCHITECTURES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32}),
}
BOS, EOS = 256, 257
"""The ids behind the 256 bytes."""

_NO_SPECIAL_IDS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


def tiny_model(
    arch: str = "llama",
    dtype: torch.dtype = torch.float32,
    *,
    vocab_size: int = 8,
    max_length: int = 256,
    seed: int = 0,
    **changes: object,
) -> PreTrainedModel:
    """Three layers of hidden size 64 with grouped queries; the same weights for the same seed."""
    make_config, make_model, extra = ARCHITECTURES[arch]
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": max_length,
        "tie_word_embeddings": False,
    }
    config = make_config(**{**sizes, **_NO_SPECIAL_IDS, **extra, **changes})
    model = make_model(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, 0.25, generator=generator)
    return model.to(dtype).eval()


@lru_cache
def tiny(
    arch: str = "llama",
    dtype: torch.dtype = torch.float32,
    *,
    vocab_size: int = 8,
    max_length: int = 256,
    seed: int = 0,
) -> TargetModel:
    model = tiny_model(arch, dtype, vocab_size=vocab_size, max_length=max_length, seed=seed)
    return TargetModel.from_transformers(model, name=f"tiny-{arch}")


def markov(
    transitions: torch.Tensor,  # [V, V] rows that sum to 1
    tokenizer: PreTrainedTokenizerFast | None = None,
    *,
    eos_id: int | None = None,
    max_length: int = 512,
) -> TargetModel:
    """A Llama whose next-token distribution behind token t is `transitions[t]`, to 1e-7."""
    vocab_size = transitions.shape[0]
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=vocab_size,
        intermediate_size=2,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=2,
        max_position_embeddings=max_length,
        rms_norm_eps=1e-12,
        tie_word_embeddings=False,
        **{**_NO_SPECIAL_IDS, "eos_token_id": eos_id},
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        layer = model.model.layers[0]
        model.model.embed_tokens.weight.copy_(torch.eye(vocab_size))
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.copy_(output_rows(transitions))
    return TargetModel.from_transformers(model, tokenizer, name="markov")


def output_rows(transitions: torch.Tensor) -> torch.Tensor:
    """Output layer `[V, V]` that makes the given rows of the identity embedding's hidden states."""
    log_p = transitions.double().clamp_min(1e-30).log()
    return (log_p / transitions.shape[0] ** 0.5).T.float()


def sure(following: Sequence[int]) -> torch.Tensor:
    """Transitions `[V, V]` in which token t is always followed by `following[t]`."""
    return torch.eye(len(following))[torch.tensor(following)]


def after(following: Sequence[int], steps: int) -> list[int]:
    """Which token stands `steps` behind each."""
    reached = list(range(len(following)))
    for _ in range(steps):
        reached = [following[token] for token in reached]
    return reached


def ring_order(vocab_size: int) -> list[int]:
    return [(token + 1) % vocab_size for token in range(vocab_size)]


@lru_cache
def ring(vocab_size: int = 12, max_length: int = 512) -> TargetModel:
    return markov(sure(ring_order(vocab_size)), max_length=max_length)


def script_order(text: str) -> list[int]:
    """BOS, then the bytes of a text (all distinct), then EOS; everything else leads to EOS."""
    tokens = [BOS, *text.encode(), EOS]
    assert len(set(tokens)) == len(tokens), f"{text!r} has a byte twice"
    following = [EOS] * 258
    for token, successor in pairwise(tokens):
        following[token] = successor
    return following


def script(text: str) -> TargetModel:
    """Says `text` after BOS, a byte at a time, then EOS."""
    return markov(sure(script_order(text)), byte_tokenizer(), eos_id=EOS)


@lru_cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """258 ids: the bytes by their value, BOS and EOS. No merges, no chat template."""
    letters = bytes_to_unicode()
    vocabulary = {letters[byte]: byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<bos>"), AddedToken("<eos>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>")


def piece_tokenizer(pieces: Sequence[str]) -> PreTrainedTokenizerFast:
    """Token i is `pieces[i]`, whatever its length; decoding joins them without spaces."""
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=pieces[0]))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
