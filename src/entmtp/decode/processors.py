"""Everything that changes logits before temperature, each defined once, for plain and tree alike.

A processor takes the scores of N nodes of each sequence and what stands before them. Plain
decoding and the exact acceptor pass one node, the one being visited, with the tokens drawn
earlier in the same step behind the history; the typical acceptor passes all nodes with their own
paths. So a token accepted early in a block counts for the later ones.

A row's parameters that ask for nothing change none of its bits, whatever its neighbours ask for.
Where no row asks for a processor it is not there.

Knows: scores and ids. Does not know: trees, noise, tokenizers.

Dimension key: B sequences · N nodes of each · V vocabulary · L history · K ids of a list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from entmtp.decode.history import NO_ID, Nodes
from entmtp.decode.sampling import Sampling

Processor = Callable[[torch.Tensor, Nodes], torch.Tensor]
"""`(scores [B, N, V], nodes) -> scores [B, N, V]`."""

Rows = Sequence[Sampling]


def make_processor(rows: Rows, device: torch.device) -> Processor | None:
    """All processors that a row asks for, in the order of `transformers`; None where none does."""
    makers = (_logit_bias, _repetition, _presence_and_frequency, _banned, _delay)
    steps = [step for make in makers if (step := make(rows, device)) is not None]
    if not steps:
        return None

    def process(scores: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        for step in steps:
            scores = step(scores, nodes)
        return scores

    return process


class _Lists(NamedTuple):
    """A list of ids and addends for each row; filled up with additions of nothing to id 0."""

    ids: torch.Tensor  # [B, K]
    values: torch.Tensor  # [B, K]

    @classmethod
    def of(cls, lists: Sequence[Sequence[tuple[int, float]]], device: torch.device) -> _Lists:
        most = max(len(one) for one in lists)
        filled = [[*one, *[(0, 0.0)] * (most - len(one))] for one in lists]
        return cls(
            torch.tensor([[token_id for token_id, _ in one] for one in filled], device=device),
            torch.tensor([[float(value) for _, value in one] for one in filled], device=device),
        )

    def add_to(self, scores: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Scores with `values`, of a shape that spreads to `[B, N, K]`, added at the ids."""
        shape = (*scores.shape[:2], self.ids.shape[1])
        return scores.scatter_add(2, self.ids[:, None].expand(shape), values.expand(shape))


def _logit_bias(rows: Rows, device: torch.device) -> Processor | None:
    """An addend for single tokens, as OpenAI's `logit_bias`."""
    if not any(row.logit_bias for row in rows):
        return None
    lists = _Lists.of([row.logit_bias for row in rows], device)
    return lambda scores, nodes: lists.add_to(scores, lists.values[:, None])


def _repetition(rows: Rows, device: torch.device) -> Processor | None:
    """Every token seen, the prompt's included: positive logits are divided, negative multiplied.

    CTRL's penalty (arXiv:1909.05858 §4.1), in the form that `transformers` gave it.
    """
    if all(row.repetition_penalty == 1 for row in rows):
        return None
    penalty = _column([row.repetition_penalty for row in rows], device)

    def process(scores: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        ids = _into_spare_column(nodes.ids, nodes.ids != NO_ID, scores)
        scores = pad(scores, (0, 1))
        seen = scores.gather(2, ids)
        seen = torch.where(seen < 0, seen * penalty, seen / penalty)
        return scores.scatter(2, ids, seen)[..., :-1]

    return process


def _presence_and_frequency(rows: Rows, device: torch.device) -> Processor | None:
    """`logit - count · frequency - (count > 0) · presence` over generated tokens, as OpenAI's."""
    if all(row.presence_penalty == row.frequency_penalty == 0 for row in rows):
        return None
    presence = _column([row.presence_penalty for row in rows], device)
    frequency = _column([row.frequency_penalty for row in rows], device)

    def process(scores: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        length = nodes.ids.shape[2]
        place = torch.arange(length, device=scores.device)
        is_generated = place >= length - nodes.num_generated[..., None]
        ids = _into_spare_column(nodes.ids, is_generated, scores)
        counts = pad(torch.zeros_like(scores), (0, 1))
        counts = counts.scatter_add(2, ids, torch.ones_like(ids, dtype=scores.dtype))[..., :-1]
        return scores - frequency * counts - presence * (counts > 0)

    return process


def _column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """One value for each row, `[B, 1, 1]`."""
    return torch.tensor([float(value) for value in values], device=device)[:, None, None]


def _into_spare_column(
    ids: torch.Tensor, counts: torch.Tensor, scores: torch.Tensor
) -> torch.Tensor:
    """Ids that do not count point at a column behind the vocabulary, which is cut off again."""
    return torch.where(counts, ids, scores.shape[2])


class _Words(NamedTuple):
    """Banned sequences of one length, of all rows."""

    rows: torch.Tensor  # [W]
    beginnings: torch.Tensor  # [W, K] all but the last id
    lasts: torch.Tensor  # [W]


def _banned(rows: Rows, device: torch.device) -> Processor | None:
    """The last id of each sequence is ruled out where the ids before it are the others."""
    if not any(row.banned_ids for row in rows):
        return None
    singles = [[(one[0], -torch.inf) for one in row.banned_ids if len(one) == 1] for row in rows]
    lists = _Lists.of(singles, device) if any(singles) else None
    lengths = sorted({len(one) for row in rows for one in row.banned_ids} - {1})
    words = [_words_of(rows, length, device) for length in lengths]

    def process(scores: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        if lists is not None:
            scores = lists.add_to(scores, lists.values[:, None])
        for each in words:
            scores = _rule_out(scores, nodes.ids, each)
        return scores

    return process


def _words_of(rows: Rows, length: int, device: torch.device) -> _Words:
    found = [
        (row, one)
        for row, sampling in enumerate(rows)
        for one in sampling.banned_ids
        if len(one) == length
    ]
    return _Words(
        torch.tensor([row for row, _ in found], device=device),
        torch.tensor([one[:-1] for _, one in found], device=device),
        torch.tensor([one[-1] for _, one in found], device=device),
    )


def _rule_out(scores: torch.Tensor, ids: torch.Tensor, words: _Words) -> torch.Tensor:
    size = words.beginnings.shape[1]
    ids = pad(ids, (max(0, size - ids.shape[2]), 0), value=NO_ID)
    has_begun = (ids[words.rows, :, -size:] == words.beginnings[:, None]).all(-1)  # [W, N]
    addend = torch.where(has_begun, -torch.inf, 0.0)
    node = torch.arange(scores.shape[1], device=scores.device)
    place = (words.rows[:, None], node[None], words.lasts[:, None])
    return scores.index_put(place, addend, accumulate=True)


def _delay(rows: Rows, device: torch.device) -> Processor | None:
    """Ids that are ruled out until so many tokens were generated: ends, before `min_tokens`."""
    if not any(row.delays for row in rows):
        return None
    lists = _Lists.of([row.delays for row in rows], device)

    def process(scores: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        is_early = nodes.num_generated[..., None] < lists.values[:, None]  # [B, N, K]
        return lists.add_to(scores, torch.where(is_early, -torch.inf, 0.0))

    return process
