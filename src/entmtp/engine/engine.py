"""The living part: requests in, events out.

Knows: which sequences wait, run and end, and turns text into ids and back. Does not know: how a
step works (`batch`), which tree is picked (`scheduler`), how drafts are made (`heads`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Ids
from itertools import count
from time import perf_counter

import torch

from entmtp.decode import ExactAcceptor, TypicalAcceptor
from entmtp.decode.checks import check_count
from entmtp.engine.batch import Batch
from entmtp.engine.events import Event, FinishEvent, Result
from entmtp.engine.params import MAX_SAMPLES, GenerationParams
from entmtp.engine.policy import check_policy, drafts
from entmtp.engine.prompt import Prompt, prompt_ids
from entmtp.engine.request import resolve
from entmtp.engine.sequence import Sequence
from entmtp.engine.stats import StepSeconds
from entmtp.errors import BadInput
from entmtp.heads import DraftHeads
from entmtp.scheduler import PlainPolicy, TreePolicy
from entmtp.target.model import TargetModel


class Engine:
    """Generates with one target, one set of heads and one tree policy.

    The output is the target's own, whatever the heads and the policy (fp32: token for token).
    """

    def __init__(
        self,
        target: TargetModel,
        heads: DraftHeads | None = None,
        policy: TreePolicy | None = None,
        *,
        acceptance: str = "exact",
        max_batch_size: int = 8,
        min_rows: int = 1,
    ) -> None:
        """
        Args:
            policy: picks each step's tree; plain decoding where there is none.
            acceptance: `exact`, or `typical`, which is **not lossless** (METHOD §2.4).
            max_batch_size: sequences that step together; others wait.
            min_rows: pad every verification to this many rows. In 16 bits, plain decoding with a
                tree's rows goes through the same kernels as the tree (DESIGN D3a).

        Raises:
            TreeError: the policy has a tree that the heads cannot fill.
            BadInput: drafts are asked for without heads.
            ModelRefused: drafts are asked for, and the target was let in without them.
        """
        self.target = target
        self.policy = policy or PlainPolicy()
        check_policy(self.policy, heads, target)
        if target.tree_refusal:
            max_batch_size = min_rows = 1
        if acceptance not in ("exact", "typical"):
            raise BadInput(f"acceptance is {acceptance!r}; give exact, or typical (not lossless)")
        self.heads = heads if drafts(self.policy) else None
        self.acceptance = acceptance
        exact = ExactAcceptor(early_exit=target.device.type == "cpu")
        acceptor = exact if acceptance == "exact" else TypicalAcceptor()
        self._batch = Batch(target, self.heads, acceptor, min_rows)
        self._max_batch_size = max_batch_size
        self._most_nodes = max(min_rows, *(tree.num_nodes for tree in self.policy.trees))
        target.warm_up({max(min_rows, tree.num_nodes) for tree in self.policy.trees})
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._inbox: dict[int, deque[Event]] = {}
        self._request_ids = count()

    @property
    def is_lossless(self) -> bool:
        return self.acceptance == "exact"

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_cache_bytes(self) -> int:
        """Memory of the key/value caches; 0 when nothing runs."""
        return self._batch.num_cache_bytes

    @property
    def cache_lengths(self) -> list[int]:
        """Committed tokens of each running sequence: all it said but the last one."""
        return self._batch.lengths

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt.

        Raises:
            BadInput: it is empty, too long for the context, or has ids that the model has not.
        """
        return prompt_ids(self.target, prompt)

    def add(
        self,
        prompt: Prompt,
        params: GenerationParams | None = None,
        policy: TreePolicy | None = None,
    ) -> int:
        """Queue a request; its id. Nothing is computed before the next `step`.

        A `policy` of its own picks the request's trees in the place of the engine's.

        Raises:
            BadInput: as `encode`; something is asked for that this model has not; drafts without
                heads.
            TreeError: the policy has a tree that the heads cannot fill.
        """
        return self._queue(self._prepare(prompt, params, policy=policy))

    def add_samples(self, prompt: Prompt, params: GenerationParams | None, n: int) -> list[int]:
        """Queue `n` answers to one prompt, one id each.

        They share a seed and are drawn by (seed, index): the first is what the seed gives alone.
        """
        return [self._queue(sequence) for sequence in self._samples(prompt, params, n)]

    def _samples(self, prompt: Prompt, params: GenerationParams | None, n: int) -> list[Sequence]:
        check_count("n", n, 1, MAX_SAMPLES, f"a count from 1 to {MAX_SAMPLES}")
        params = (params or GenerationParams()).seeded()
        return [self._prepare(prompt, params, index) for index in range(n)]

    def _prepare(
        self,
        prompt: Prompt,
        params: GenerationParams | None,
        index: int = 0,
        policy: TreePolicy | None = None,
    ) -> Sequence:
        policy = policy or self.policy
        check_policy(policy, self.heads, self.target)
        request = resolve(self.target, self.encode(prompt), params or GenerationParams(), index)
        selection = policy.begin(request.sample_seed)
        return Sequence(next(self._request_ids), request, self.target.tokenizer, selection)

    def _queue(self, sequence: Sequence) -> int:
        self._waiting.append(sequence)
        self._inbox[sequence.request_id] = deque()
        return sequence.request_id

    @torch.inference_mode()
    def step(self) -> None:
        """Let waiting requests in, and take one tree decode step of all that run.

        What happened lies ready for `events`. An error ends every request.
        """
        try:
            self._admit()
            if self._running:
                self._decode_step()
        except BaseException:
            self._abandon()
            raise

    def events(self, request_id: int) -> Iterator[Event]:
        """The events of one request, stepping until it is over; closing cancels it."""
        try:
            while request_id in self._inbox:
                yield from self.take_events(request_id)
                if request_id in self._inbox:  # its last event was not among them
                    self.step()
        finally:
            self.forget(request_id)

    def take_events(self, request_id: int) -> Iterator[Event]:
        """What happened to one request since it was asked last; steps nothing."""
        inbox = self._inbox.get(request_id, deque())
        while inbox:
            event = inbox.popleft()
            if isinstance(event, FinishEvent):
                del self._inbox[request_id]
            yield event

    def stream(self, prompt: Prompt, params: GenerationParams | None = None) -> Iterator[Event]:
        """Generate one answer as it comes. Closing the iterator frees the cache at once.

        Raises what `add` raises; the request itself waits until its first event is asked for.
        """
        sequence = self._prepare(prompt, params)

        def events() -> Iterator[Event]:
            yield from self.events(self._queue(sequence))

        return events()

    def generate(self, prompt: Prompt, params: GenerationParams | None = None) -> Result:
        """Generate one answer."""
        return self.generate_many([prompt], params)[0]

    def generate_many(
        self, prompts: Ids[Prompt], params: GenerationParams | None = None
    ) -> list[Result]:
        """Generate an answer to each prompt, up to `max_batch_size` of them at a time."""
        return self._run([self._prepare(prompt, params) for prompt in prompts])

    def generate_samples(
        self, prompt: Prompt, params: GenerationParams | None, n: int
    ) -> list[Result]:
        """Generate `n` answers to one prompt; see `add_samples`."""
        return self._run(self._samples(prompt, params, n))

    def _run(self, sequences: Ids[Sequence]) -> list[Result]:
        request_ids = [self._queue(sequence) for sequence in sequences]
        try:
            return [self._result(request_id) for request_id in request_ids]
        finally:
            for request_id in request_ids:
                self.forget(request_id)

    def _result(self, request_id: int) -> Result:
        for event in self.events(request_id):
            if isinstance(event, FinishEvent):
                return event.result
        raise AssertionError("a request ends with a FinishEvent")

    @torch.inference_mode()  # cache rows may be moved in the mode they were made in, and no other
    def cancel(self, request_id: int) -> None:
        """End a request, if it is not over: its cache rows are free, its events end."""
        for row, sequence in enumerate(self._running):
            if sequence.request_id == request_id:
                self._release(row)
                self._end_early(sequence)
                return
        for sequence in self._waiting:
            if sequence.request_id == request_id:
                self._waiting.remove(sequence)
                self._end_early(sequence)
                return

    def _end_early(self, sequence: Sequence) -> None:
        sequence.finish_reason = "cancelled"
        self._tell(sequence.finish())

    def forget(self, request_id: int) -> None:
        """Cancel a request that nobody listens to any more, events and all."""
        self.cancel(request_id)
        # Emptied as well: somebody may be in the midst of taking events.
        self._inbox.pop(request_id, deque()).clear()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_batch_size:
            sequence = self._waiting[0]  # until it runs: an error must find it there
            if sequence.num_remaining == 0:
                sequence.finish_reason = "length"
                self._tell(sequence.finish())
            else:
                self._begin(sequence)
            self._waiting.popleft()
        self._sweep()

    def _begin(self, sequence: Sequence) -> None:
        request = sequence.request
        capacity = request.num_expected_rows + self._most_nodes
        with sequence.timed_prefill():
            first = self._batch.join(
                request.prompt_ids, request.choosing, capacity, sequence.reads_root
            )
        self._running.append(sequence)
        self._tell(sequence.take([first.token_id], first.root_signals, first.logprobs))

    def _decode_step(self) -> None:
        started = perf_counter()
        choices = [sequence.next_choice() for sequence in self._running]
        output = self._batch.step(choices, [sequence.root for sequence in self._running])
        outcomes = zip(
            output.token_ids,
            output.root_signals,
            output.logprobs,
            output.num_draft_tokens,
            strict=True,
        )
        for sequence, outcome in zip(self._running, outcomes, strict=True):
            self._tell(sequence.take(*outcome))
        self._count_time(perf_counter() - started, output.seconds)
        self._sweep()

    def _count_time(self, wall: float, parts: StepSeconds) -> None:
        """Book a step's time; what lies around the batch's own part of it is the host's."""
        parts.host += wall - parts.total
        for sequence in self._running:
            sequence.stats.decode_seconds += wall
            sequence.stats.step_seconds.add(parts, 1 / len(self._running))

    def _sweep(self) -> None:
        """Let finished sequences go."""
        for row in reversed(range(len(self._running))):
            sequence = self._running[row]
            if sequence.finish_reason is not None:
                self._release(row)
                self._tell(sequence.finish())

    def _release(self, row: int) -> None:
        self._batch.leave(row)
        self._running[row] = self._running[-1]
        self._running.pop()

    def _tell(self, event: Event) -> None:
        if event.request_id in self._inbox:
            self._inbox[event.request_id].append(event)

    def _abandon(self) -> None:
        for sequence in [*self._running, *self._waiting]:
            self._end_early(sequence)
        self._running.clear()
        self._waiting.clear()
        self._batch.clear()
