"""Folded attention against the plain formula, for every grouping of queries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from entmtp.errors import BadInput, ModelRefused
from entmtp.target import TargetModel
from entmtp.target.attention import fold_mask, folded_attention
from entmtp.target.masks import additive
from fixtures import tiny_model


def plain_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Keys and values repeated, in double precision: `[B, T, N, D]`."""
    groups = query.shape[1] // key.shape[1]
    key, value = (each.double().repeat_interleave(groups, 1) for each in (key, value))
    scores = query.double() @ key.mT * scaling
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.exp()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + sinks.double().exp()[None, :, None, None]
    return (weights / total @ value).transpose(1, 2)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("value_dim", [8, 12])
def test_folded_is_plain(num_kv_heads: int, masked: bool, value_dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 4, 5, 8, generator=generator)
    key = torch.randn(3, num_kv_heads, 11, 8, generator=generator)
    value = torch.randn(3, num_kv_heads, 11, value_dim, generator=generator)
    mask = None
    if masked:
        mask = torch.rand(3, 1, 5, 11, generator=generator) < 0.5
        mask[..., 0] = True
    else:
        query = query[:, :, :1]
    for scaling in (8**-0.5, 0.1):
        output, weights = folded_attention(
            nn.Module(), query, key, value, mask, scaling=scaling, dropout=0.0
        )
        assert weights is None
        expected = plain_attention(query, key, value, mask, scaling)
        assert torch.allclose(output.double(), expected, atol=1e-6)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("options", [{"softcap": 0.5}, {"s_aux": 1}, {"softcap": 2.0, "s_aux": 1}])
@pytest.mark.parametrize("form", ["boolean", "additive", "none"])
def test_caps_and_sinks(num_kv_heads: int, options: dict[str, Any], form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = 1 if form == "none" else 5
    query = torch.randn(3, 4, rows, 8, generator=generator)
    key = torch.randn(3, num_kv_heads, 11, 8, generator=generator)
    value = torch.randn(3, num_kv_heads, 11, 12, generator=generator)
    mask = None if form == "none" else torch.rand(3, 1, rows, 11, generator=generator) < 0.5
    if mask is not None:
        mask[..., 0] = True
    given = additive(mask, torch.float32) if form == "additive" else mask
    sinks = torch.randn(4, generator=generator) if "s_aux" in options else None
    output, _ = folded_attention(
        nn.Module(), query, key, value, given, 0.3, **{**options, "s_aux": sinks}
    )
    expected = plain_attention(query, key, value, mask, 0.3, options.get("softcap"), sinks)
    assert torch.allclose(output.double(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [("position_bias", torch.zeros(1, 1, 1, 4)), ("dropout", 0.1), ("head_mask", [0])],
)
def test_an_option_that_would_be_dropped_is_refused(name: str, value: object) -> None:
    query = torch.zeros(1, 1, 1, 4)
    with pytest.raises(ModelRefused, match=f"takes the option {name}, which is not known"):
        folded_attention(nn.Module(), query, query, query, None, **{name: value})


def test_options_that_change_nothing_are_fine() -> None:
    query = torch.randn(1, 1, 1, 4)
    plain = folded_attention(nn.Module(), query, query, query, None)[0]
    options = {"dropout": 0.0, "sliding_window": 3, "position_ids": query, "softcap": None}
    assert torch.equal(
        folded_attention(nn.Module(), query, query, query, None, **options)[0], plain
    )


def test_what_is_masked_does_not_matter() -> None:
    query, key = torch.randn(1, 2, 3, 4), torch.randn(1, 1, 6, 4)
    mask = torch.ones(1, 1, 3, 6, dtype=torch.bool)
    mask[..., 4:] = False
    other = key.clone()
    other[:, :, 4:] = 1e4
    outputs = [folded_attention(nn.Module(), query, k, k, mask)[0] for k in (key, other)]
    assert torch.equal(*outputs)


def test_the_model_is_not_used_without_a_mask_by_accident() -> None:
    """`transformers` makes no mask for our attention; its own generation would see the future."""
    model = tiny_model()
    TargetModel.from_transformers(model)
    ids = torch.tensor([[1, 2, 3]])
    with pytest.raises(BadInput, match=r"set_attn_implementation\('sdpa'\)"):
        model(input_ids=ids)
    model.set_attn_implementation("sdpa")
    assert torch.equal(model(input_ids=ids).logits, tiny_model()(input_ids=ids).logits)


def test_a_mask_is_folded_as_the_queries_are() -> None:
    mask = torch.rand(2, 1, 3, 5) < 0.5
    assert fold_mask(mask, 1) is mask
    folded = fold_mask(mask, 2)
    assert torch.equal(folded[:, 0], torch.cat([mask, mask], 2)[:, 0])
