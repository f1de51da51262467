"""The decoder layer of our own is Llama's, bit for bit."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from entmtp.heads.base import PrefixShape
from entmtp.heads.decoder import Decoder
from entmtp.target.attention import ATTENTION_NAME, register_attention
from entmtp.target.cache import LayerShape
from entmtp.target.masks import additive, causal_among
from entmtp.target.model_cache import ModelCache

HIDDEN, ROWS, FIRST = 48, 11, 4000
SHAPE = PrefixShape(6, 2, 8, 80, 1e-5, 50000.0, 8192)


def llama() -> LlamaModel:
    register_attention()
    config = LlamaConfig(
        vocab_size=1,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        hidden_size=HIDDEN,
        intermediate_size=SHAPE.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=SHAPE.num_attention_heads,
        num_key_value_heads=SHAPE.num_kv_heads,
        head_dim=SHAPE.head_dim,
        rms_norm_eps=SHAPE.rms_norm_eps,
        max_position_embeddings=SHAPE.max_length,
        rope_parameters={"rope_type": "default", "rope_theta": SHAPE.rope_theta},
    )
    config._attn_implementation = ATTENTION_NAME
    model = LlamaModel(config)
    del model.embed_tokens
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_and_gradients_are_those_of_llama(dtype: torch.dtype) -> None:
    theirs, ours = llama(), Decoder(HIDDEN, SHAPE)
    exact = theirs.rotary_emb.inv_freq
    theirs.to(dtype)
    theirs.rotary_emb.inv_freq = exact  # 16 bits do not hold positions
    ours.to(dtype).load_state_dict(theirs.state_dict())
    hidden = torch.randn(2, ROWS, HIDDEN).to(dtype)
    positions = FIRST + torch.arange(ROWS).expand(2, -1)
    mask = additive(causal_among(1, ROWS, torch.device("cpu"))[:, None], dtype)
    expected = theirs(
        inputs_embeds=hidden, position_ids=positions, attention_mask=mask, use_cache=False
    ).last_hidden_state
    got = ours(hidden, positions, mask, None)
    assert torch.equal(got, expected)
    for states in (got, expected):
        states.float().square().sum().backward()
    gradients = {name: weight.grad for name, weight in theirs.named_parameters()}
    assert gradients.keys() == dict(ours.named_parameters()).keys()
    for name, weight in ours.named_parameters():
        assert torch.equal(weight.grad, gradients[name]), name


@torch.no_grad()
def test_it_keeps_the_same_rows() -> None:
    theirs, ours = llama(), Decoder(HIDDEN, SHAPE)
    ours.load_state_dict(theirs.state_dict())
    hidden, positions = torch.randn(1, 1, HIDDEN), torch.full((1, 1), 7)
    caches = [
        ModelCache.allocate(
            [LayerShape(SHAPE.num_kv_heads, SHAPE.head_dim, SHAPE.head_dim)],
            1,
            4,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        for _ in range(2)
    ]
    theirs(inputs_embeds=hidden, position_ids=positions, cache=caches[0], use_cache=True)
    ours(hidden, positions, None, caches[1])
    for one, other in zip(*(cache.layer(0) for cache in caches), strict=True):
        assert torch.equal(one, other)
        assert one.any()
