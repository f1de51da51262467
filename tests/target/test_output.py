"""Logits: a row has the same bits alone and among others, and is what the model itself says."""

from __future__ import annotations

import pytest
import torch

from entmtp.target.linears import can_pack
from entmtp.target.output import OutputLayer
from fixtures import tiny, tiny_model

pytestmark = pytest.mark.skipif(not can_pack(torch.float32), reason="oneDNN packs nothing here")


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden_size", [64, 576])
def test_a_row_of_logits_does_not_depend_on_its_company(
    hidden_size: int, dtype: torch.dtype
) -> None:
    layer = OutputLayer.of(tiny_model(dtype=dtype, vocab_size=300, hidden_size=hidden_size))
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(200, hidden_size, generator=generator).to(dtype)
    alone = torch.cat([layer.logits(row) for row in hidden.split(1)])
    for count in (2, 3, 8, 16, 33, 64, 200):
        assert torch.equal(layer.logits(hidden[:count]), alone[:count]), count
    exact = hidden.double() @ layer.weight.double().T
    assert torch.allclose(alone.double(), exact, atol=1e-3)


@torch.no_grad()
def test_any_shape_of_rows() -> None:
    target = tiny()
    hidden = torch.randn(2, 3, target.hidden_size)
    logits = target.logits(hidden)
    assert logits.shape == (2, 3, target.vocab_size)
    assert torch.equal(logits[1, 2], target.logits(hidden[1, 2]))
    assert target.rows_at_once > 1
