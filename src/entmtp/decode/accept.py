"""Which drafts the target keeps: one exact rule for every temperature, and one lossy one.

Knows: hidden states of a verified tree, its topology, the drafted ids, and a sampler.
Does not know: models beyond "hidden states to logits", caches, text.

Words: *accepted* tokens are drafts that the target itself would have said; the *bonus* token is
the target's token behind the last accepted node, and the next step's root.

Dimension key: B batch · T slots · D depth · H hidden size · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from entmtp.decode.history import History, Nodes, Past, tree_nodes
from entmtp.decode.logprobs import Logprobs, join_logprobs, logprobs_of
from entmtp.decode.sampler import Sampler
from entmtp.trees import TreeBuffers

Logits = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states `[..., H]` to float32 logits `[..., V]`."""


class Acceptance(NamedTuple):
    """What a step keeps."""

    slots: torch.Tensor  # [B, D+1] slots from the root to the last node, then repeated
    token_ids: torch.Tensor  # [B, D+1] the target's token behind each of `slots`
    num_accepted: torch.Tensor  # [B] drafts kept, 0 to D
    last_logits: torch.Tensor  # [B, V] behind the last node kept: what the bonus token came from
    logprobs: Logprobs | None = None
    """Of `token_ids`, where they are asked for"""


class HostAcceptance(NamedTuple):
    """The same in Python's numbers."""

    slots: Sequence[Sequence[int]]
    """`[B][A]`, as deep as the deepest walk went"""
    token_ids: list[list[int]]
    """Of each sequence, as many as it accepted and one more"""
    last_logits: torch.Tensor | None = None  # [B, V]
    """Unless they were not computed"""
    logprobs: Logprobs | None = None


class Acceptor(Protocol):
    """Decides which drafts of a verified tree are kept."""

    def __call__(
        self, hidden: torch.Tensor, draft_ids: torch.Tensor, buffers: TreeBuffers, target: Draw
    ) -> Acceptance | HostAcceptance: ...


class Draw(NamedTuple):
    """The target's own choice behind a node: logits, sampler, and the position it is keyed by."""

    logits: Logits
    sampler: Sampler
    positions: torch.Tensor  # [B, T] absolute ones of the nodes; the root's counts
    history: History | None = None
    """The root and all before it, where the sampler looks back"""
    num_logprobs: int | None = None
    """How many of the likeliest tokens are to be told of; None for no log-probabilities"""
    rows_at_once: int = 0
    """Whole trees of up to so many rows have their logits computed in one product"""
    largest_logits: Callable[[torch.Tensor], Sequence[int]] | None = None
    """Of hidden states `[..., H]` the ids of their largest logits, one after the other, if the
    sampler takes those and nobody else looks at logits"""

    @property
    def first_positions(self) -> torch.Tensor:
        """Of the tokens behind the roots, `[B]`."""
        return self.positions[:, 0] + 1

    def is_cheap(self, hidden: torch.Tensor) -> bool:
        """Whether the logits of whole trees' hidden states `[B, T, H]` are computed at once."""
        return hidden.shape[0] * hidden.shape[1] <= self.rows_at_once

    def token(self, logits: torch.Tensor, drawn: Sequence[torch.Tensor]) -> torch.Tensor:
        """Ids `[B]` behind a node with logits `[B, V]`, reached by the tokens `drawn`, each `[B]`.

        The drawn tokens count as said: processors see what plain decoding would show them.
        """
        return self.race(logits, drawn).argmax(-1)

    def race(self, logits: torch.Tensor, drawn: Sequence[torch.Tensor]) -> torch.Tensor:
        """Numbers `[B, V]` whose largest is that token; see `Sampler.race`."""
        if self.sampler.takes_largest:
            return logits
        positions = self.first_positions + len(drawn) if drawn else self.first_positions
        return self.sampler.race(logits, positions, Past(self.history, drawn))


class ExactAcceptor:
    """One draw per visited node from the target's own distribution (METHOD §5.1).

    Descend if a child carries the drawn token, else stop: every emitted token is the target's
    own, for any tree. Logits are computed for visited nodes only, always B rows at a time, so
    the output layer's product has the same shape as in plain decoding (DESIGN D3a); or for the
    whole tree at once, where the target says that this changes no bit.
    """

    def __init__(self, early_exit: bool) -> None:
        """`early_exit`: look at the result after each level and stop once all sequences have.

        Cheap where the host is the device; a wait where it is not.
        """
        self._early_exit = early_exit

    def __call__(
        self, hidden: torch.Tensor, draft_ids: torch.Tensor, buffers: TreeBuffers, target: Draw
    ) -> Acceptance | HostAcceptance:
        walk = self._walk_on_host if self._early_exit else self._walk_on_device
        return walk(hidden, draft_ids, buffers, target)

    def _walk_on_host(
        self, hidden: torch.Tensor, draft_ids: torch.Tensor, buffers: TreeBuffers, target: Draw
    ) -> HostAcceptance:
        """With the walks in Python's numbers: a handful of them are cheaper than tensors."""
        behind = (
            _Drawn(hidden, target) if target.largest_logits is None else _Largest(hidden, target)
        )
        drafted = _HostTrees(draft_ids, buffers)
        batch = hidden.shape[0]
        walking = list(range(batch))
        nodes = [0] * batch
        slots = [nodes]
        said: list[list[int]] = [[] for _ in walking]
        for depth in range(buffers.depth + 1):
            tokens = behind(nodes)
            for row in walking:
                said[row].append(tokens[row])
            if depth == buffers.depth:
                break
            reached = {row: drafted.child(row, nodes[row], tokens[row]) for row in walking}
            walking = [row for row, child in reached.items() if child]
            if not walking:
                break
            nodes = nodes.copy()  # a walk that has ended stays at its last node
            for row in walking:
                nodes[row] = reached[row]
            slots.append(nodes)
        return HostAcceptance(list(zip(*slots, strict=True)), said, behind.logits, behind.logprobs)

    def _walk_on_device(
        self, hidden: torch.Tensor, draft_ids: torch.Tensor, buffers: TreeBuffers, target: Draw
    ) -> Acceptance:
        batch = torch.arange(hidden.shape[0], device=hidden.device)
        node = torch.zeros_like(batch)
        num_accepted = torch.zeros_like(batch)
        walking = torch.ones_like(batch, dtype=torch.bool)
        slots = [node]
        token_ids: list[torch.Tensor] = []
        logprobs: list[Logprobs] = []
        known = target.logits(hidden) if target.is_cheap(hidden) else None
        for depth in range(buffers.depth + 1):
            logits = target.logits(hidden[batch, node]) if known is None else known[batch, node]
            token = target.token(logits, token_ids)
            token_ids.append(token)
            if target.num_logprobs is not None:
                logprobs.append(logprobs_of(logits[:, None], token[:, None], target.num_logprobs))
            if depth == buffers.depth:
                break
            is_next = _children(buffers, node, depth + 1) & (draft_ids == token[:, None])
            walking = walking & is_next.any(-1)
            node = torch.where(walking, is_next.int().argmax(-1), node)
            num_accepted = num_accepted + walking
            slots.append(node)
        told = join_logprobs(logprobs) if logprobs else None
        # A walk that has ended stays at its last node while others go on.
        return Acceptance(
            torch.stack(slots, 1), torch.stack(token_ids, 1), num_accepted, logits, told
        )


class _Drawn:
    """The target's own tokens behind one node of each sequence, then behind the next ones."""

    def __init__(self, hidden: torch.Tensor, target: Draw) -> None:
        self._hidden, self._target = hidden, target
        self._known = target.logits(hidden) if target.is_cheap(hidden) else None
        self._drawn: list[torch.Tensor] = []
        self._logprobs: list[Logprobs] = []
        self.logits: torch.Tensor | None = None
        """Behind the latest nodes, `[B, V]`"""

    def __call__(self, nodes: Sequence[int]) -> list[int]:
        target, known = self._target, self._known
        logits = target.logits(_at(self._hidden, nodes)) if known is None else _at(known, nodes)
        # NumPy finds the largest in a twentieth of the time that PyTorch takes on one thread.
        largest = target.race(logits, self._drawn).numpy().argmax(-1)
        self.logits = logits
        self._drawn.append(torch.from_numpy(largest))
        if target.num_logprobs is not None:
            token = self._drawn[-1][:, None]
            self._logprobs.append(logprobs_of(logits[:, None], token, target.num_logprobs))
        tokens: list[int] = largest.tolist()
        return tokens

    @property
    def logprobs(self) -> Logprobs | None:
        """Of all tokens, where they are asked for."""
        return join_logprobs(self._logprobs) if self._logprobs else None


class _Largest:
    """The same where they are the largest of logits that nobody else looks at."""

    logits = logprobs = None

    def __init__(self, hidden: torch.Tensor, target: Draw) -> None:
        assert target.largest_logits is not None, "asked before"
        self._hidden, self._ask = hidden, target.largest_logits
        self._known = self._ask(hidden) if target.is_cheap(hidden) else None

    def __call__(self, nodes: Sequence[int]) -> Sequence[int]:
        known, num_slots = self._known, self._hidden.shape[1]
        if known is None:
            return self._ask(_at(self._hidden, nodes))
        return [known[row * num_slots + node] for row, node in enumerate(nodes)]


class _HostTrees:
    """A drafted batch of trees in Python's numbers."""

    def __init__(self, draft_ids: torch.Tensor, buffers: TreeBuffers) -> None:
        self._ids: list[list[int]] = draft_ids.tolist() if buffers.depth else []
        self._parents = buffers.parents_on_host

    def child(self, row: int, node: int, token_id: int) -> int:
        """The first slot under `node` that carries a token; 0, the root's, for none."""
        slots = zip(self._parents[row], self._ids[row], strict=True)
        for slot, (parent, drafted) in enumerate(slots):
            if drafted == token_id and parent == node:
                return slot
        return 0


def _at(values: torch.Tensor, nodes: Sequence[int]) -> torch.Tensor:
    """Of `[B, T, …]`, what belongs to one node of each sequence: `[B, …]`."""
    if len(nodes) == 1:
        return values[:, nodes[0]]
    places = torch.tensor(nodes, device=values.device)
    return values[torch.arange(len(nodes), device=values.device), places]


def _children(buffers: TreeBuffers, node: torch.Tensor, depth: int) -> torch.Tensor:
    """Which slots `[B, T]` are children, of `depth`, of each sequence's `node`."""
    return buffers.valid & (buffers.depths == depth) & (buffers.parents == node[:, None])


class TypicalAcceptor:
    """Medusa's typical acceptance: **not lossless**, opt-in (METHOD §2.4).

    A draft is kept where the target finds it likely enough, `p > min(epsilon, delta·exp(-H))`
    in the distribution that the sampler draws from, whatever the target itself would have drawn;
    the longest kept path wins, ties by its likelihood. The token behind it is the target's own
    draw. Processors see each node's own path. Greedy sequences are accepted exactly.
    """

    def __init__(self, *, epsilon: float = 0.09, delta: float = 0.3) -> None:
        """`epsilon` and `delta` as Hydra's defaults."""
        self._epsilon = epsilon
        self._delta = delta

    def __call__(
        self, hidden: torch.Tensor, draft_ids: torch.Tensor, buffers: TreeBuffers, target: Draw
    ) -> Acceptance:
        logits = target.logits(hidden)  # [B, T, V]
        scores = target.sampler.scores(logits, self._nodes(draft_ids, buffers, target))
        batch = torch.arange(hidden.shape[0], device=hidden.device)[:, None]
        above, kept = self._judge(scores, draft_ids, buffers, target.sampler.is_greedy)
        last, num_accepted = _longest_path(kept, above, buffers)
        bonus = target.sampler.draw(
            scores[batch[:, 0], last], target.first_positions + num_accepted
        )
        slots = buffers.ancestors[batch[:, 0], last]
        token_ids = torch.cat([draft_ids.gather(1, slots[:, 1:]), bonus[:, None]], 1)
        token_ids = token_ids.scatter(1, num_accepted[:, None], bonus[:, None])
        logprobs = None
        if target.num_logprobs is not None:
            logprobs = logprobs_of(logits[batch, slots], token_ids, target.num_logprobs)
        return Acceptance(slots, token_ids, num_accepted, logits[batch[:, 0], last], logprobs)

    def _nodes(self, draft_ids: torch.Tensor, buffers: TreeBuffers, target: Draw) -> Nodes | None:
        if target.history is None:
            return None
        return tree_nodes(target.history, draft_ids, buffers, target.first_positions)

    def _judge(
        self,
        scores: torch.Tensor,  # [B, T, V]
        draft_ids: torch.Tensor,  # [B, T]
        buffers: TreeBuffers,
        is_greedy: torch.Tensor,  # [B]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each draft's log-likelihood `[B, T]` given its parent, and whether it may be kept."""
        log_p = torch.log_softmax(scores, -1)
        entropy = -(log_p.exp() * log_p).nan_to_num(0.0).sum(-1)
        limit = torch.clamp(self._delta * torch.exp(-entropy), max=self._epsilon).log()
        batch = torch.arange(scores.shape[0], device=scores.device)[:, None]
        above = log_p[batch, buffers.parents, draft_ids]
        typical = above > limit.gather(1, buffers.parents)
        exact = draft_ids == scores.argmax(-1).gather(1, buffers.parents)
        kept = torch.where(is_greedy[:, None], exact, typical) & buffers.valid
        kept[:, 0] = True
        return above, kept


def _longest_path(
    kept: torch.Tensor,  # [B, T] bool
    above: torch.Tensor,  # [B, T] log-likelihood of each draft given its parent
    buffers: TreeBuffers,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Last slot and depth `[B]` of the longest path kept throughout, ties by likelihood."""
    above = above.index_fill(1, torch.zeros(1, dtype=torch.long, device=above.device), 0.0)
    whole = ~(buffers.mask & ~kept[:, None, :]).any(-1)
    longest = torch.where(whole, buffers.depths, -1).amax(-1)
    candidate = whole & (buffers.depths == longest[:, None])
    score = torch.where(buffers.mask, above[:, None, :], 0.0).sum(-1)
    return score.masked_fill(~candidate, -torch.inf).argmax(-1), longest
