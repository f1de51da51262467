"""From logits to the target's own token: processors, filters, and a keyed draw.

Knows: logits, what stands before them, and how each row wants its token chosen. Does not know:
trees or drafts: plain and speculative decoding call the same sampler (DESIGN D3).

Dimension key: B sequences · N nodes of each · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

from entmtp.decode.filters import make_warper
from entmtp.decode.history import NOTHING_BEFORE, Nodes, Past
from entmtp.decode.noise import gumbel_noise
from entmtp.decode.processors import make_processor
from entmtp.decode.sampling import Sampling

Noise = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""`(seeds [B], positions [B], V) -> [B, V]`, as `gumbel_noise` is."""


class Sampler:
    """Chooses a token for each row of a batch, row b as `rows[b]` says.

    A batch of greedy rows without processors pays for an argmax and nothing else.
    """

    def __init__(
        self, rows: Sequence[Sampling], device: torch.device, noise: Noise | None = None
    ) -> None:
        """`noise`: a runtime's faster way to `gumbel_noise`."""
        is_drawn = [not row.is_greedy for row in rows]
        assert all(row.seed is not None for row in rows if not row.is_greedy), "seeds come first"
        self._noise = noise or gumbel_noise
        self._process = make_processor(rows, device)
        self._warp = make_warper(rows, device) if any(is_drawn) else None
        self._seeds = torch.tensor([row.seed or 0 for row in rows], device=device)
        self._are_all_drawn = all(is_drawn)
        self.is_greedy = torch.tensor([row.is_greedy for row in rows], device=device)
        """`[B]`"""

    @property
    def looks_back(self) -> bool:
        """A token depends on more than the logits in front of it: the past must be given."""
        return self._process is not None

    @property
    def takes_largest(self) -> bool:
        """Of the logits as they are."""
        return self._process is None and self._warp is None

    @property
    def kind(self) -> Hashable:
        """What operations it is made of: samplers of one kind differ in numbers alone."""
        warp = None if self._warp is None else self._warp.kind
        return self.looks_back, self._are_all_drawn, warp

    def take(self, other: Sampler) -> None:
        """Draw as another sampler of the same kind and number of rows does, in place."""
        for mine, theirs in zip(self._tensors(), other._tensors(), strict=True):
            mine.copy_(theirs)

    def _tensors(self) -> list[torch.Tensor]:
        assert not self.looks_back, "what processors keep is not all tensors"
        return [self._seeds, self.is_greedy, *(self._warp.tensors if self._warp else ())]

    def __call__(
        self,
        logits: torch.Tensor,  # [B, V] float32
        positions: torch.Tensor,  # [B] absolute positions of the tokens to be drawn
        past: Past = NOTHING_BEFORE,
    ) -> torch.Tensor:
        """Ids `[B]`: one token of each row's own distribution."""
        return self.race(logits, positions, past).argmax(-1)

    def race(
        self, logits: torch.Tensor, positions: torch.Tensor, past: Past = NOTHING_BEFORE
    ) -> torch.Tensor:
        """Numbers `[B, V]` whose largest are the ids; of equal ones the lowest."""
        if self.takes_largest:
            return logits
        nodes = past.nodes(positions) if self.looks_back else None
        return self._with_noise(self.scores(logits[:, None], nodes)[:, 0], positions)

    def scores(self, logits: torch.Tensor, nodes: Nodes | None) -> torch.Tensor:
        """What tokens are drawn from, `[B, N, V]`; greedy ones are the largest of it."""
        if self._process is not None:
            assert nodes is not None, "these processors look back"
            logits = self._process(logits, nodes)
        return logits if self._warp is None else self._warp(logits)

    def draw(self, scores: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Ids `[B]` of the largest scores `[B, V]`, with each drawn row's noise; ties low."""
        return self._with_noise(scores, positions).argmax(-1)

    def _with_noise(self, scores: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        if self._warp is None:
            return scores
        noise = self._noise(self._seeds, positions, scores.shape[-1])
        if not self._are_all_drawn:
            noise = noise.masked_fill(self.is_greedy[:, None], 0.0)
        return scores + noise
