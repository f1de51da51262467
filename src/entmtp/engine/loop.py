"""The decode loop: sequences wait, join the batch, step together, and leave; events tell of it.

Knows: which sequences wait, run and end, and who still listens. Does not know: prompts, targets,
policies, how a step works (`batch`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from time import perf_counter

import torch

from entmtp.engine.batch import Batch
from entmtp.engine.events import Event, FinishEvent
from entmtp.engine.sequence import Company, Sequence, Tried
from entmtp.engine.stats import StepSeconds


class Loop:
    """Steps the sequences of one batch, in the order in which they came."""

    def __init__(self, batch: Batch, max_batch_size: int, most_nodes: int) -> None:
        """
        Args:
            max_batch_size: sequences that step together; others wait.
            most_nodes: cache rows that a step's drafts are likely to take.
        """
        self.batch = batch
        self.running: list[Sequence] = []
        """Row by row"""
        self.waiting: deque[Sequence] = deque()
        self.last_step = StepSeconds()
        """Where the latest step's time went, whoever took part in it"""
        self._max_batch_size = max_batch_size
        self._most_nodes = most_nodes
        self._inbox: dict[int, deque[Event]] = {}

    def queue(self, sequence: Sequence) -> int:
        """Let a sequence wait for its turn; its id."""
        self.waiting.append(sequence)
        self._inbox[sequence.request_id] = deque()
        return sequence.request_id

    @torch.inference_mode()
    def step(self) -> None:
        """Let waiting requests in, and take one tree decode step of all that run.

        What happened lies ready for `events`. An error ends every request.
        """
        try:
            with self.batch.at_work():
                self.admit()
                if self.running:
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

    @torch.inference_mode()  # cache rows may be moved in the mode they were made in, and no other
    def cancel(self, request_id: int) -> None:
        """End a request, if it is not over: its cache rows are free, its events end."""
        for row, sequence in enumerate(self.running):
            if sequence.request_id == request_id:
                self._release(row)
                self._end_early(sequence)
                return
        for sequence in self.waiting:
            if sequence.request_id == request_id:
                self.waiting.remove(sequence)
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

    def admit(self) -> None:
        """Let waiting sequences in, as far as there is room."""
        while self.waiting and len(self.running) < self._max_batch_size:
            sequence = self.waiting[0]  # until it runs: an error must find it there
            if sequence.num_remaining == 0:
                sequence.finish_reason = "length"
                self._tell(sequence.finish())
            else:
                self._begin(sequence)
            self.waiting.popleft()
        self._sweep()

    def _begin(self, sequence: Sequence) -> None:
        request = sequence.request
        capacity = request.num_expected_rows + self._most_nodes
        with sequence.timed_prefill():
            first = self.batch.join(
                request.prompt_ids, request.choosing, capacity, sequence.reads_root
            )
        self.running.append(sequence)
        self._tell(sequence.take([first.token_id], first.root_signals, first.logprobs))

    def _decode_step(self) -> None:
        started = perf_counter()
        choices = [sequence.next_choice() for sequence in self.running]
        output = self.batch.step(choices, [sequence.root for sequence in self.running])
        company = Company(len(choices), output.num_rows, output.seconds.total)
        tried = [Tried(*each, company) for each in zip(choices, output.trees, strict=True)]
        outcomes = zip(output.token_ids, output.root_signals, output.logprobs, tried, strict=True)
        for sequence, outcome in zip(self.running, outcomes, strict=True):
            self._tell(sequence.take(*outcome))
        self._count_time(perf_counter() - started, output.seconds)
        self._sweep()

    def _count_time(self, wall: float, parts: StepSeconds) -> None:
        """Book a step's time; what lies around the batch's own part of it is the host's."""
        parts.host += wall - parts.total
        self.last_step = parts
        for sequence in self.running:
            sequence.stats.decode_seconds += wall
            sequence.stats.step_seconds.add(parts, 1 / len(self.running))

    def _sweep(self) -> None:
        """Let finished sequences go."""
        for row in reversed(range(len(self.running))):
            sequence = self.running[row]
            if sequence.finish_reason is not None:
                self._release(row)
                self._tell(sequence.finish())

    def _release(self, row: int) -> None:
        self.batch.leave(row)
        self.running[row] = self.running[-1]
        self.running.pop()

    def _tell(self, event: Event) -> None:
        if event.request_id in self._inbox:
            self._inbox[event.request_id].append(event)

    def _abandon(self) -> None:
        for sequence in [*self.running, *self.waiting]:
            self._end_early(sequence)
        self.running.clear()
        self.waiting.clear()
        self.batch.clear()
