"""A tiny model and its heads as folders, as a user has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from draft_heads import random_heads
from entmtp.heads import StaticTree, save_heads, write_static_trees
from entmtp.target import TargetModel
from entmtp.trees import Tree, chain, full
from fixtures import EOS, byte_tokenizer, tiny_model

CHAT_TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:"
VOCAB_SIZE = 258
STORED_TREES = (
    StaticTree(Tree.from_paths([(0,)]), 1.2),
    StaticTree(chain(3), 1.3),
    StaticTree(full(2, 3), 1.4),
)


def save_bare_model(folder: Path, **sizes: Any) -> Path:
    """A random model without a tokenizer; sizes as `tiny_model` takes them."""
    tiny_model(**sizes).save_pretrained(folder)
    return folder


def save_model(folder: Path, *, chat_template: str | None = None, **sizes: Any) -> Path:
    """A random Llama over bytes that never ends by itself."""
    save_bare_model(folder, **{"vocab_size": VOCAB_SIZE, **sizes})
    tokenizer = byte_tokenizer()
    assert tokenizer.eos_token_id == EOS
    tokenizer.chat_template = chat_template
    try:
        tokenizer.save_pretrained(folder)
    finally:
        tokenizer.chat_template = None
    return folder


def save_random_heads(
    folder: Path, kind: str, trees: tuple[StaticTree, ...] = STORED_TREES
) -> Path:
    """Heads of `save_model`'s model that guess no better than a die."""
    target = TargetModel.from_transformers(tiny_model(vocab_size=VOCAB_SIZE), name="tiny")
    save_heads(random_heads(target, kind), folder, target, {}, torch.float32)
    if trees:
        write_static_trees(folder, trees)
    return folder
