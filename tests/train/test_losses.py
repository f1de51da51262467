"""The fused loss equals the textbook one, and so does its gradient."""

from __future__ import annotations

import pytest
import torch

from entmtp.train.arithmetic import multiplying_in
from entmtp.train.losses import CHUNK, cross_entropy, mix_labels

NUM, SIZE, ROWS, LABELS = 2 * CHUNK + 3, 6, 20, 5


def problem() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(NUM, SIZE, generator=generator, dtype=torch.float64)
    weight = torch.randn(ROWS, SIZE, generator=generator, dtype=torch.float64)
    bias = torch.randn(ROWS, generator=generator, dtype=torch.float64)
    # Distinct labels of each position, about a quarter of them outside the draft vocabulary.
    rows = torch.rand(NUM, ROWS + 8, generator=generator).argsort(1)[:, :LABELS]
    rows = torch.where(rows < ROWS, rows, -1)
    probs = torch.rand(NUM, LABELS, generator=generator, dtype=torch.float64).softmax(1)
    return features, weight, bias, rows, probs


def textbook(
    features: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    rows: torch.Tensor,
    probs: torch.Tensor,
) -> torch.Tensor:
    log_probs = (features @ weight.T + bias).log_softmax(-1)
    total = features.new_zeros(())
    for position in range(NUM):
        for row, prob in zip(rows[position].tolist(), probs[position], strict=True):
            if row >= 0:
                total = total - prob * log_probs[position, row]
    return total


@pytest.mark.parametrize("is_trained", [False, True], ids=["frozen", "trained"])
def test_cross_entropy_equals_the_textbook(is_trained: bool) -> None:
    features, weight, bias, rows, probs = problem()
    weight.requires_grad_(is_trained)
    values, gradients = [], []
    for compute in (cross_entropy, textbook):
        leaf = features.clone().requires_grad_()
        value = compute(leaf, weight, bias, rows, probs)
        (value * 0.5).backward()
        values.append(value.item())
        gradients.append(leaf.grad)
    assert values[0] == pytest.approx(values[1], rel=1e-9)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-9)


def test_labels_mix_the_teacher_and_the_data() -> None:
    ids, probs = mix_labels(
        torch.tensor([[4, 2]]), torch.tensor([[0.75, 0.25]]), torch.tensor([2]), 0.2
    )
    assert ids.tolist() == [[4, 2, 2]]
    assert probs[0].tolist() == pytest.approx([0.6, 0.2, 0.2])


def test_cross_entropy_in_bfloat16_is_a_rounding_away() -> None:
    features, weight, bias, rows, probs = (
        tensor.float() if tensor.is_floating_point() else tensor for tensor in problem()
    )
    exact, rounded = features.clone().requires_grad_(), features.clone().requires_grad_()
    expected = cross_entropy(exact, weight, bias, rows, probs)
    with multiplying_in("bfloat16", torch.device("cpu")):
        found = cross_entropy(rounded, weight, bias, rows, probs)
    assert found.dtype == torch.float32
    assert found.item() != expected.item()  # it was in other arithmetic
    assert found.item() == pytest.approx(expected.item(), rel=1e-2)
    expected.backward()
    found.backward()
    assert exact.grad is not None
    assert rounded.grad is not None
    assert (rounded.grad - exact.grad).norm() < 0.02 * exact.grad.norm()
