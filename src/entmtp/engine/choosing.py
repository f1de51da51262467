"""How the tokens of a running sequence are chosen, from its first one on.

Knows: what was asked of each sequence's tokens, and what it has said. Does not know: caches,
trees, heads.

Dimension key: B batch · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from entmtp.decode import (
    History,
    Past,
    Record,
    RootSignals,
    Sampler,
    Sampling,
    TokenLogprob,
    copy_to_host,
    logprobs_of,
)
from entmtp.target import TargetModel


class Choosing(NamedTuple):
    """How a running sequence's tokens are chosen, and what is told of them."""

    sampling: Sampling
    num_logprobs: int | None = None


class Row(NamedTuple):
    """A running sequence, as far as the choice of its tokens goes."""

    choosing: Choosing
    record: Record


class FirstToken(NamedTuple):
    """What the prompt is followed by."""

    token_id: int
    root_signals: RootSignals
    logprobs: tuple[TokenLogprob, ...] | None


def history_of(sampler: Sampler, rows: Sequence[Row], device: torch.device) -> History | None:
    """What the sequences have said, if the sampler looks back at it."""
    if not sampler.looks_back:
        return None
    return History.of([row.record for row in rows], device)


def first_token(
    row: Row,
    logits: torch.Tensor,  # [1, V]
    reads_root: bool,
    target: TargetModel,
) -> FirstToken:
    """The token behind the prompt, given the logits there; it is put on record."""
    device, most = logits.device, row.choosing.num_logprobs
    sampler = Sampler([row.choosing.sampling], device, target.gumbel_noise)
    position = torch.tensor([row.record.num_prompt], device=device)
    token = sampler(logits, position, Past(history_of(sampler, [row], device), ()))
    read = logits if reads_root else None
    [[token_id]], [root] = copy_to_host((token[:, None],), read, target.root_signals)
    row.record.ids.append(token_id)
    if most is None:
        return FirstToken(token_id, root, None)
    told = logprobs_of(logits[:, None], token[:, None], most).rows([[token_id]], [most])
    return FirstToken(token_id, root, told[0])
