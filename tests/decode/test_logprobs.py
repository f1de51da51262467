"""Log-probabilities: values, order, ties, and no word that JSON has not."""

from __future__ import annotations

import json
from math import log

import pytest
import torch

from entmtp.decode.logprobs import LOWEST, Logprobs, join_logprobs, logprobs_of

P = torch.tensor([0.1, 0.4, 0.2, 0.3])


def told(logits: torch.Tensor, token: int, most: int) -> Logprobs:
    return logprobs_of(logits[None, None], torch.tensor([[token]]), most)


def test_values_and_order() -> None:
    one = told(P.log() + 7, token=2, most=3)
    assert float(one.chosen) == pytest.approx(log(0.2), abs=1e-6)
    assert one.top_ids.tolist() == [[[1, 3, 2]]]
    assert one.top[0, 0].tolist() == pytest.approx([log(0.4), log(0.3), log(0.2)], abs=1e-6)


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_ties_go_to_the_lowest_id(most: int) -> None:
    logits = torch.zeros(1000)
    logits[[500, 17, 3]] = 4.0
    logits[900] = 5.0
    assert told(logits, 0, most).top_ids[0, 0].tolist() == [900, 3, 17, 500, 0][:most]


def test_no_more_than_there_are() -> None:
    assert told(P.log(), 0, 20).top_ids.tolist() == [[[1, 3, 2, 0]]]
    assert told(P.log(), 0, 0).top_ids.shape == (1, 1, 0)


def test_what_cannot_be_is_a_number() -> None:
    logits = torch.tensor([0.0, -torch.inf, 1.0])
    one = told(logits, token=1, most=3)
    assert float(one.chosen) == float(one.top[0, 0, 2]) == LOWEST
    json.dumps(one.top.tolist(), allow_nan=False)
    broken = told(torch.full((3,), torch.nan), 0, 2)
    json.dumps([broken.chosen.tolist(), broken.top.tolist()], allow_nan=False)


def test_rows_get_what_they_want_of_what_was_said() -> None:
    logits = torch.stack([P.log(), P.flip(0).log(), P.log()])[:, None]
    parts = [logprobs_of(logits, torch.tensor([[token]] * 3), 3) for token in (1, 0)]
    rows = join_logprobs(parts).rows([[1, 0], [1], [1, 0]], [3, 1, None])
    assert rows[2] is None
    first, second = rows[0], rows[1]
    assert first is not None
    assert second is not None
    assert [one.token_id for one in first] == [1, 0]
    assert [token_id for token_id, _ in first[1].top] == [1, 3, 2]
    assert [one.token_id for one in second] == [1]
    assert second[0].logprob == pytest.approx(log(0.2), abs=1e-6)
    assert [token_id for token_id, _ in second[0].top] == [2]
