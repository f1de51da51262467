"""`config.json` beside our heads, in the style of the `speculators` library (PEERS §6.2).

Knows: how that file names a verifier and a way of proposing. Does not know: our own description,
which it points to: programs that read such files learn what the heads are, not how to run them.
"""

from __future__ import annotations

from typing import Any

from entmtp.heads.base import HeadsConfig, PrefixShape
from entmtp.target.model import TargetModel

FILE_NAME = "config.json"
FORMAT_VERSION = "0.9.0"
"""Release of `speculators` whose field names are used."""


def speculators_config(config: HeadsConfig, target: TargetModel) -> dict[str, Any]:
    """The whole file. Trees are no proposal method there: the best chain stands for them."""
    kind = config.kind.replace("++", "_plus_plus")
    written: dict[str, Any] = {
        "speculators_model_type": f"entmtp_{kind}",
        "speculators_version": FORMAT_VERSION,
        "architectures": [f"Entmtp{''.join(p.title() for p in kind.split('_'))}Speculator"],
        "speculators_config": {
            "algorithm": f"entmtp_{kind}",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": config.num_draft_heads,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": target.name,
                "architectures": [target.unmodified.class_name],
            },
        },
        "draft_vocab_size": config.draft_vocab_size,
        "entmtp": {"heads": "heads.json", "trees": "trees.json"},
    }
    if config.prefix is not None:
        written["transformer_layer_config"] = _layer(config, config.prefix)
    return written


def _layer(config: HeadsConfig, shape: PrefixShape) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_length,
    }
