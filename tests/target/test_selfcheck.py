"""Models that cannot be verified with a tree are refused, by name, in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AttentionInterface,
    BertConfig,
    BertLMHeadModel,
    BloomConfig,
    BloomForCausalLM,
    CpmAntConfig,
    CpmAntForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)

from entmtp.errors import ModelRefused
from entmtp.target import KVCache, TargetModel, output
from entmtp.target import model as model_module
from entmtp.target.attention import ATTENTION_NAME, folded_attention
from entmtp.target.selfcheck import self_check
from fixtures import ARCHITECTURES, tiny_model
from model_roster import ROWS, build

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
MODEL_WITH = {"softcap": "gemma2", "s_aux": "gpt_oss"}


def random_weights(model: PreTrainedModel) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, 0.25, generator=generator)
    return model


def mistral(window: int | None) -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window))


def qwen2(window: int) -> PreTrainedModel:
    sliding = {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 1}
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, **sliding))


def refusal(model: PreTrainedModel) -> str:
    with pytest.raises(ModelRefused) as caught:
        self_check(TargetModel.from_transformers(random_weights(model)))
    message = str(caught.value)
    assert "\n" not in message
    assert model.config.model_type in message
    assert "another model" in message
    return message


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_good_models_pass(arch: str, dtype: torch.dtype) -> None:
    self_check(TargetModel.from_transformers(tiny_model(arch, dtype, vocab_size=64)))


@pytest.mark.parametrize(
    "make_model",
    [
        lambda: mistral(None),
        lambda: mistral(64),
        lambda: mistral(4096),
        lambda: qwen2(64),
        lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64)
        ),
    ],
    ids=["no window", "window = context", "window > context", "layers with a window", "gpt2"],
)
def test_a_window_that_covers_the_context_is_fine(
    make_model: Callable[[], PreTrainedModel],
) -> None:
    self_check(TargetModel.from_transformers(random_weights(make_model())))


@pytest.mark.parametrize("make_model", [mistral, qwen2])
@pytest.mark.parametrize("window", [3, 8, 63])
def test_a_window_that_slides_is_fine(
    make_model: Callable[[int], PreTrainedModel], window: int
) -> None:
    target = TargetModel.from_transformers(random_weights(make_model(window)))
    self_check(target)
    assert target.config.sliding_window == window


@pytest.mark.parametrize("make_model", [mistral, qwen2])
def test_a_window_that_is_not_kept_is_refused(
    make_model: Callable[[int], PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that is wider than all that the check looks at."""
    monkeypatch.setattr(model_module, "sliding_mask", lambda mask, *_: mask)
    assert "other logits for a prompt" in refusal(make_model(63))


@pytest.mark.parametrize("dropped", ["softcap", "s_aux"])
def test_an_option_of_attention_that_is_dropped_is_refused(
    dropped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(*arguments: Any, **options: Any) -> tuple[torch.Tensor, None]:
        options.pop(dropped, None)
        return folded_attention(*arguments, **options)

    row = next(row for row in ROWS if row.model_type == MODEL_WITH[dropped])
    self_check(TargetModel.from_transformers(build(row)))
    monkeypatch.setitem(AttentionInterface._global_mapping, ATTENTION_NAME, forgetful)
    assert "other logits for a prompt" in refusal(build(row))


@pytest.mark.parametrize("model_type", ["gemma2", "cohere", "granite"])
def test_what_stands_behind_the_output_layer_is_missed(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_scale_and_softcap", lambda _: (1.0, None))
    row = next(row for row in ROWS if row.model_type == model_type)
    assert "in a way of its own" in refusal(build(row))


def test_a_cache_of_more_rows_than_tokens_is_refused() -> None:
    config = CpmAntConfig(
        vocab_size=64,
        hidden_size=32,
        num_attention_heads=4,
        dim_head=8,
        dim_ff=32,
        num_hidden_layers=2,
        max_position_embeddings=64,
    )
    assert "keeps 33 rows for one token" in refusal(CpmAntForCausalLM(config))


def test_recurrent_models_are_refused() -> None:
    mamba = MambaConfig(vocab_size=64, hidden_size=32, state_size=4, num_hidden_layers=2)
    assert "layers of kind linear_attention" in refusal(MambaForCausalLM(mamba))
    rwkv = RwkvConfig(
        vocab_size=64,
        hidden_size=32,
        attention_hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
    )
    assert "seems recurrent" in refusal(RwkvForCausalLM(rwkv))


def test_other_ways_to_attend_are_refused() -> None:
    bloom = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4))
    assert "no max_position_embeddings" in refusal(bloom)
    # A mask of its own, whatever ours says.
    bert = BertLMHeadModel(BertConfig(**SIZES, is_decoder=False))
    assert "other logits for a prompt" in refusal(bert)


def sees_all(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention that forgets the mask."""
    mask = torch.ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool)
    return folded_attention(module, query, key, value, mask, **options)


def sees_what_came_before(
    module: object,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attention that is always causal, as kernels without a mask argument are."""
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    rows, used = query.shape[2], key.shape[2]
    causal = torch.ones(rows, used, dtype=torch.bool).tril(used - rows)
    output = scaled_dot_product_attention(query, key, value, attn_mask=causal, scale=scaling)
    return output.transpose(1, 2), None


@pytest.mark.parametrize("attention", [sees_all, sees_what_came_before])
def test_M07_attention_that_ignores_the_mask_is_refused(
    attention: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TargetModel.from_transformers(tiny_model(vocab_size=64))
    monkeypatch.setitem(AttentionInterface._global_mapping, ATTENTION_NAME, attention)
    with pytest.raises(
        ModelRefused, match=r"llama computes other logits for a (prompt|tree of drafts)"
    ):
        self_check(target)


def test_a_cache_that_keeps_the_wrong_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TargetModel.from_transformers(tiny_model(vocab_size=64))
    monkeypatch.setattr(KVCache, "keep", lambda cache, slots, counts: cache.advance(counts))
    with pytest.raises(ModelRefused, match="for the token behind accepted drafts"):
        self_check(target)


def test_positions_that_are_ignored_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TargetModel.from_transformers(tiny_model(vocab_size=64))
    body = target._body

    def in_order(position_ids: torch.Tensor, **arguments: object) -> object:
        first = position_ids[:, :1]
        order = first + torch.arange(position_ids.shape[1])
        return body(position_ids=order, **arguments)

    monkeypatch.setattr(target, "_body", in_order)
    with pytest.raises(ModelRefused, match="for a tree of drafts"):
        self_check(target)


def test_the_model_is_left_as_it_was() -> None:
    target = TargetModel.from_transformers(tiny_model(vocab_size=64))
    self_check(target)
    assert target.transformers_model.config._attn_implementation == ATTENTION_NAME
