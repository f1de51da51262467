"""The models of the matrix: tiny random ones of every architecture that users are likely to bring.

A row is a line here and nothing else: the runner (`model_matrix`) and the page (`docs/models.md`)
follow. Three layers of hidden size 64, and a window of 6 tokens where there is one, so that every
answer goes past it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto import CONFIG_MAPPING

VOCAB_SIZE = 8
WINDOW = 6
LENGTH = 96
"""Context of the tiny models, and four times the original length of the scaled ropes."""

FULL, SLIDING = "full_attention", "sliding_attention"
MIXED = {"layer_types": [SLIDING, FULL, SLIDING], "sliding_window": WINDOW}

_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


@dataclass(frozen=True)
class Row:
    """One model of the matrix."""

    model_type: str
    what: str = ""
    """What is special about it"""
    changes: dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    """Words of the sentence that refuses it; empty for a model that must be exact"""

    @property
    def name(self) -> str:
        return f"{self.model_type}: {self.what}" if self.what else self.model_type


def build(row: Row, seed: int = 0) -> PreTrainedModel:
    """The model of a row; the same weights for the same seed."""
    given = {**_SIZES, **row.changes}
    config = CONFIG_MAPPING[row.model_type](**given)
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # sinks begin at random numbers of its own
        model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.empty_like(weight).normal_(0.0, 0.25, generator=generator)
            # Norms stay near 1, biases and sinks near 0.
            weight.copy_(noise if weight.ndim > 1 else weight + noise)
    return model


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, "factor": 4.0, **more}}


_ORIGINAL = {"original_max_position_embeddings": LENGTH // 4}
_HALF = {"original_max_position_embeddings": LENGTH // 2}
_LLAMA3 = {**_ORIGINAL, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONGROPE = {**_HALF, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2}
_LOCAL_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
_QWEN_MOE = {**_MOE, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
_HEADS_OF_16 = {"head_dim": 16}
_GEMMA = {**_HEADS_OF_16, "query_pre_attn_scalar": 16, "tie_word_embeddings": True}
_SOFT_CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
_GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": LENGTH}
_OPT = {"ffn_dim": 128, "word_embed_proj_dim": 32, "do_layer_norm_before": False}
_COHERE = {"logit_scale": 0.25, "tie_word_embeddings": True}
_GRANITE = {
    "logits_scaling": 4.0,
    "residual_multiplier": 0.5,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.25,
}
_GPT_OSS = {**MIXED, **_HEADS_OF_16, **_LOCAL_MOE}
_DEEPSEEK = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
_GPT_NEO = {"num_heads": 4, "num_layers": 3, "attention_types": [[["global"], 3]]}
_JAMBA = {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4}
_LLAMA4 = {
    **_HEADS_OF_16,
    "attention_chunk_size": WINDOW,
    "num_local_experts": 2,
    "intermediate_size_mlp": 64,
    "pad_token_id": 0,
}

_SLIDING = "sliding window in every layer"
_BOTH = "sliding and full layers"

ROWS = (
    Row("llama", "1 key/value head of 4 (MQA)", {"num_key_value_heads": 1}),
    Row("llama", "2 key/value heads of 4 (GQA)"),
    Row("llama", "4 key/value heads of 4", {"num_key_value_heads": 4}),
    Row("llama", "tied embeddings", {"tie_word_embeddings": True}),
    Row("llama", "rope linear", _rope("linear")),
    Row("llama", "rope dynamic", _rope("dynamic")),
    Row("llama", "rope yarn", _rope("yarn", **_ORIGINAL)),
    Row("llama", "rope llama3", _rope("llama3", **_LLAMA3)),
    Row("mistral", "no window", {"sliding_window": None}),
    Row("mistral", _SLIDING, {"sliding_window": WINDOW}),
    Row("ministral", _BOTH, {**MIXED, **_HEADS_OF_16}),
    Row("qwen2"),
    Row("qwen2", _BOTH, {**MIXED, "use_sliding_window": True}),
    Row("qwen3", "head size that is not hidden/heads", {"head_dim": 32}),
    Row("qwen3", _BOTH, {**MIXED, **_HEADS_OF_16, "use_sliding_window": True}),
    Row("qwen2_moe", "experts", _QWEN_MOE),
    Row("qwen3_moe", "experts", {**_QWEN_MOE, **_HEADS_OF_16}),
    Row("mixtral", "experts", _LOCAL_MOE),
    Row("phi", "partial rope"),
    Row("phi3", "no window"),
    Row("phi3", _SLIDING, {"sliding_window": WINDOW}),
    Row("phi3", "rope longrope", {**_HALF, **_rope("longrope", **_LONGROPE)}),
    Row("phimoe", "experts", _LOCAL_MOE),
    Row("gemma", "", {**_HEADS_OF_16, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    Row("gemma2", f"soft caps, {_BOTH}", {**_GEMMA, **MIXED, **_SOFT_CAPS}),
    Row("gemma3_text", f"{_BOTH}, a rope for each", {**_GEMMA, **MIXED}),
    Row("vaultgemma", f"soft caps, {_BOTH}", {**_GEMMA, **MIXED, **_SOFT_CAPS}),
    Row("gpt_neox", "partial rope, parallel residual"),
    Row("gpt2", "learned positions", _GPT2),
    Row("gptj", "", {**_GPT2, "rotary_dim": 8}),
    Row("gpt_bigcode", "learned positions, MQA", _GPT2),
    Row("opt", "learned positions, projected embeddings", _OPT),
    Row("biogpt", "learned positions"),
    Row("xglm", "sinusoidal positions, attention of its own", {"ffn_dim": 128}),
    Row("falcon", "rope, MQA, attention of its own"),
    Row("falcon", "rope, new decoder", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    Row("olmo", "clipped queries", {"clip_qkv": 1.0}),
    Row("olmo2", "norms behind the blocks"),
    Row("olmo3", _BOTH, MIXED),
    Row("olmoe", "experts", _MOE),
    Row("stablelm", "partial rope", {"use_parallel_residual": True, "qk_layernorm": True}),
    Row("starcoder2", _SLIDING, {"sliding_window": WINDOW}),
    Row("cohere", "scaled logits", _COHERE),
    Row("cohere2", f"scaled logits, {_BOTH}, the latter without rope", {**_COHERE, **MIXED}),
    Row("granite", "scaled logits and residuals", _GRANITE),
    Row("granitemoe", "scaled logits, experts", {**_GRANITE, **_LOCAL_MOE}),
    Row("smollm3", "one layer without rope", {"no_rope_layers": [1, 1, 0]}),
    Row("exaone", "partial rope"),
    Row("exaone4", f"{_BOTH}, the latter without rope", MIXED),
    Row("ernie4_5"),
    Row("glm", "", _HEADS_OF_16),
    Row("glm4", "", _HEADS_OF_16),
    Row("helium", "", _HEADS_OF_16),
    Row("hunyuan_v1_dense", "", _HEADS_OF_16),
    Row("internlm3", "", _HEADS_OF_16),
    Row("nanochat", "soft-capped logits"),
    Row("nemotron"),
    Row("persimmon", "partial rope"),
    Row("seed_oss", "", _HEADS_OF_16),
    Row("apertus"),
    Row("diffllama", "difference of two attentions"),
    Row("minimax_m2", "experts", {**_HEADS_OF_16, **_LOCAL_MOE}),
    Row("gpt_oss", f"sinks, experts, {_BOTH}", _GPT_OSS),
    Row("deepseek_v3", "latent attention, keys wider than values", _DEEPSEEK),
    Row("gpt_neo", "", _GPT_NEO, refused="puts a mask of its own"),
    Row("falcon", "alibi", {"alibi": True}, refused="falcon with alibi"),
    Row("bloom", "alibi", {"max_position_embeddings": None}, refused="no max_position_embeddings"),
    Row("mpt", "alibi", {"d_model": 64, "n_heads": 4, "n_layers": 3}, refused="mpt with alibi"),
    Row("llama4_text", "chunked attention", _LLAMA4, refused="chunked_attention"),
    Row("mamba", "recurrent", {"state_size": 4}, refused="linear_attention"),
    Row("rwkv", "recurrent", {"attention_hidden_size": 64}, refused="seems recurrent"),
    Row("jamba", "recurrent and full layers", _JAMBA, refused="linear_attention"),
    Row("qwen3_next", "linear and full layers", _QWEN_MOE, refused="linear_attention"),
    Row("deepseek_v32", "indexed attention", _DEEPSEEK, refused="indexed_attention"),
)
