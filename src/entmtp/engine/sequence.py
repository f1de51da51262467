"""One sequence: what was asked, what was said, where it stands. One of two mutable things.

Knows: ids, text and stop rules of one generation. Does not know: models, tensors, other sequences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Ids
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple

from entmtp.data.tokenizer import Tokenizer
from entmtp.decode import RootSignals, TokenLogprob
from entmtp.engine.events import FinishEvent, FinishReason, Result, TokenEvent
from entmtp.engine.request import Request
from entmtp.engine.stats import DecodeStats
from entmtp.engine.text import TextStream
from entmtp.scheduler import Selection, Signals, StepChoice, decision_of
from entmtp.trees import Part, Tree


class Company(NamedTuple):
    """A step as a whole."""

    num_sequences: int
    num_rows: int
    """Verified, padding included"""
    seconds: float


class Tried(NamedTuple):
    """What a step did for one sequence."""

    choice: StepChoice
    tree: Tree | Part
    """Verified"""
    company: Company


class Sequence:
    """The state of one generation on the host."""

    def __init__(
        self,
        request_id: int,
        request: Request,
        tokenizer: Tokenizer | None,
        selection: Selection,
    ) -> None:
        self.request_id = request_id
        self.request = request
        self.stats = DecodeStats(num_prompt_tokens=len(request.prompt_ids))
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._logprobs: list[TokenLogprob] | None = None if request.params.logprobs is None else []
        self._text = TextStream(tokenizer, request.params.stop, request.params.min_tokens)
        self._selection = selection
        self._last_accepted = 0
        self._last = Company(1, 0, math.nan)
        self._root_signals = RootSignals()

    @property
    def root(self) -> int:
        """The target's last token: said, but not yet in the cache."""
        return self.token_ids[-1]

    @property
    def reads_root(self) -> bool:
        """Whether its selection wants signals of the root."""
        return self._selection.reads_root

    @property
    def num_remaining(self) -> int:
        return self.request.max_tokens - len(self.token_ids)

    @contextmanager
    def timed_prefill(self) -> Iterator[None]:
        """Count what happens inside as the time to the first token."""
        started = perf_counter()
        yield
        self.stats.prefill_seconds = perf_counter() - started

    def next_choice(self) -> StepChoice:
        """The policy's choice of trees, cut to the tokens that may still be said.

        A step says at most its depth plus one tokens, so no draft is made in vain and no
        position past the context is ever fed.
        """
        signals = Signals(
            self.stats.num_drafts,
            self._last_accepted,
            *self._root_signals,
            num_context=len(self.request.prompt_ids) + len(self.token_ids),
            seconds=self._last.seconds,
            num_sequences=self._last.num_sequences,
            num_rows=self._last.num_rows,
        )
        return StepChoice(self._selection, signals, self.num_remaining - 1)

    def take(
        self,
        token_ids: Ids[int],
        root_signals: RootSignals,
        logprobs: Ids[TokenLogprob] | None = None,
        tried: Tried | None = None,
    ) -> TokenEvent:
        """Say the tokens of one step, or (of the prompt) the first one; sets the finish reason.

        What follows an end of the sequence inside the block is not said.

        Args:
            root_signals: of the last of the tokens, the next step's root.
            tried: how the step came by them.
        """
        # Others may have them in passing, and in other company not.
        self._root_signals = root_signals if self.reads_root else RootSignals()
        said = []
        for token_id in token_ids:
            said.append(token_id)
            if self._say(token_id):
                break
        decision = None
        if tried is not None:
            # Drafts behind the end were not said, so they do not count.
            self._last_accepted = len(said) - 1
            self._last = tried.company
            self.stats.count_step(tried.tree.num_draft_tokens, self._last_accepted)
            decision = decision_of(
                tried.choice, tried.tree, self._last_accepted, self._last.seconds
            )
        self.stats.num_tokens = len(self.token_ids)
        num_accepted = min(len(said), len(token_ids) - 1)
        told = None if logprobs is None else tuple(logprobs[: len(said)])
        if self._logprobs is not None:
            self._logprobs += told or ()
        return TokenEvent(
            request_id=self.request_id,
            token_ids=tuple(said),
            text=self._text.take(),
            num_accepted=num_accepted,
            num_draft_tokens=0 if tried is None else tried.tree.num_draft_tokens,
            logprobs=told,
            decision=decision,
        )

    def _say(self, token_id: int) -> bool:
        """Append one token; True if the sequence ends with it."""
        self.token_ids.append(token_id)
        if token_id in self.request.end_ids or self._text.push(token_id):
            self.finish_reason = "stop"
        elif self.num_remaining == 0:
            self.finish_reason = "length"
        return self.finish_reason is not None

    def finish(self) -> FinishEvent:
        rest = self._text.flush()
        assert self.finish_reason is not None
        result = Result(
            self.request_id,
            self._text.text,
            tuple(self.token_ids),
            self.finish_reason,
            self.stats,
            seed=self.request.seed,
            sample_index=self.request.index,
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
        )
        return FinishEvent(self.request_id, rest, result)
