"""A GGUF file with a random two-layer Llama and a byte-level tokenizer, made in milliseconds."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from transformers.convert_slow_tokenizer import bytes_to_unicode

HIDDEN, LAYERS, HEADS, KV_HEADS, INNER = 16, 2, 2, 1, 32
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_tiny_gguf(path: Path, pre: str = "smollm") -> Path:
    """`pre` is the name of the tokenizer's way to cut text into words."""
    writer = gguf.GGUFWriter(path, "llama")
    letters = list(bytes_to_unicode().values())
    # One merge of two digits: only a tokenizer that cuts at every digit never uses it.
    tokens = [*SPECIAL, *letters, "12"]
    _write_config(writer)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    kinds = [gguf.TokenType.CONTROL] * len(SPECIAL)
    writer.add_token_types(kinds + [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    _write_weights(writer, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_config(writer: gguf.GGUFWriter) -> None:
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)


def _write_weights(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    random = np.random.default_rng(0)
    kv = HIDDEN * KV_HEADS // HEADS
    shapes = {"token_embd": (vocab_size, HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm": (HIDDEN,),
            f"blk.{layer}.ffn_norm": (HIDDEN,),
            f"blk.{layer}.attn_q": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k": (kv, HIDDEN),
            f"blk.{layer}.attn_v": (kv, HIDDEN),
            f"blk.{layer}.attn_output": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_gate": (INNER, HIDDEN),
            f"blk.{layer}.ffn_up": (INNER, HIDDEN),
            f"blk.{layer}.ffn_down": (HIDDEN, INNER),
        }
    for name, shape in shapes.items():
        weight = random.normal(0, 0.3, shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", weight)
