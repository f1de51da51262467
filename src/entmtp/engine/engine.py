"""The living part: requests in, events out.

Knows: prompts and what is asked of their answers. Does not know: which sequence runs when
(`loop`), how a step works (`batch`), which tree is picked (`scheduler`).
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ids
from itertools import count

from entmtp.decode import Acceptor, ExactAcceptor, TypicalAcceptor
from entmtp.decode.checks import check_count
from entmtp.engine.batch import Batch
from entmtp.engine.events import Event, FinishEvent, Result
from entmtp.engine.loop import Loop
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
            BadInput: drafts are asked for without heads; a count is below 1.
            ModelRefused: drafts are asked for, and the target was let in without them.
        """
        for name, value in (("max_batch_size", max_batch_size), ("min_rows", min_rows)):
            check_count(name, value, 1, None, "a count from 1 up")
        self.target = target
        self.policy = policy or PlainPolicy()
        check_policy(self.policy, heads, target)
        if target.tree_refusal:
            max_batch_size = min_rows = 1
        self.heads = heads if drafts(self.policy) else None
        self._has_left_out = heads is not self.heads
        self.acceptance = acceptance
        batch = _batch(target, self.heads, _acceptor(acceptance, target), min_rows)
        most_nodes = max(min_rows, *(tree.num_nodes for tree in self.policy.trees))
        target.warm_up({max(min_rows, rows) for rows in self.policy.num_rows})
        batch.warm_up(self.policy.trees)
        self._loop = Loop(batch, max_batch_size, most_nodes)
        self._request_ids = count()

    @property
    def is_lossless(self) -> bool:
        return self.acceptance == "exact"

    @property
    def num_running(self) -> int:
        return len(self._loop.running)

    @property
    def num_waiting(self) -> int:
        return len(self._loop.waiting)

    @property
    def num_cache_bytes(self) -> int:
        """Memory of the key/value caches; 0 when nothing runs."""
        return self._loop.batch.num_cache_bytes

    @property
    def cache_lengths(self) -> list[int]:
        """Committed tokens of each running sequence: all it said but the last one."""
        return self._loop.batch.lengths

    @property
    def last_step(self) -> StepSeconds:
        """Where the latest decode step's time went, for all of its sequences together."""
        return self._loop.last_step

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
        return self._loop.queue(self._prepare(prompt, params, policy=policy))

    def add_samples(
        self,
        prompt: Prompt,
        params: GenerationParams | None,
        n: int,
        policy: TreePolicy | None = None,
    ) -> list[int]:
        """Queue `n` answers to one prompt, one id each; a `policy` as in `add`.

        They share a seed and are drawn by (seed, index): the first is what the seed gives alone.
        """
        return [self._loop.queue(sequence) for sequence in self._samples(prompt, params, n, policy)]

    def _samples(
        self,
        prompt: Prompt,
        params: GenerationParams | None,
        n: int,
        policy: TreePolicy | None = None,
    ) -> list[Sequence]:
        check_count("n", n, 1, MAX_SAMPLES, f"a count from 1 to {MAX_SAMPLES}")
        params = (params or GenerationParams()).seeded()
        return [self._prepare(prompt, params, index, policy) for index in range(n)]

    def _prepare(
        self,
        prompt: Prompt,
        params: GenerationParams | None,
        index: int = 0,
        policy: TreePolicy | None = None,
    ) -> Sequence:
        policy = policy or self.policy
        check_policy(policy, self.heads, self.target, are_left_out=self._has_left_out)
        request = resolve(self.target, self.encode(prompt), params or GenerationParams(), index)
        selection = policy.begin(request.sample_seed)
        return Sequence(next(self._request_ids), request, self.target.tokenizer, selection)

    def step(self) -> None:
        """Let waiting requests in, and take one tree decode step of all that run.

        What happened lies ready for `events`. An error ends every request.
        """
        self._loop.step()

    def events(self, request_id: int) -> Iterator[Event]:
        """The events of one request, stepping until it is over; closing cancels it."""
        return self._loop.events(request_id)

    def take_events(self, request_id: int) -> Iterator[Event]:
        """What happened to one request since it was asked last; steps nothing."""
        return self._loop.take_events(request_id)

    def cancel(self, request_id: int) -> None:
        """End a request, if it is not over: its cache rows are free, its events end."""
        self._loop.cancel(request_id)

    def forget(self, request_id: int) -> None:
        """Cancel a request that nobody listens to any more, events and all."""
        self._loop.forget(request_id)

    def stream(self, prompt: Prompt, params: GenerationParams | None = None) -> Iterator[Event]:
        """Generate one answer as it comes. Closing the iterator frees the cache at once.

        Raises what `add` raises; the request itself waits until its first event is asked for.
        """
        sequence = self._prepare(prompt, params)

        def events() -> Iterator[Event]:
            yield from self.events(self._loop.queue(sequence))

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
        request_ids = [self._loop.queue(sequence) for sequence in sequences]
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


def _batch(
    target: TargetModel, heads: DraftHeads | None, acceptor: Acceptor, min_rows: int
) -> Batch:
    if target.runtime == "graphs":
        # Imported here, because it costs seconds that no other runtime needs.
        from entmtp.engine.graphed import GraphBatch
        from entmtp.target.runtimes.graphs import GraphsTarget

        assert isinstance(target, GraphsTarget), "the runtime's name says so"
        return GraphBatch(target, heads, acceptor, min_rows)
    return Batch(target, heads, acceptor, min_rows)


def _acceptor(name: str, target: TargetModel) -> Acceptor:
    if name == "exact":
        return ExactAcceptor(early_exit=target.device.type == "cpu")
    if name == "typical":
        return TypicalAcceptor()
    raise BadInput(f"acceptance is {name!r}; give exact, or typical (not lossless)")
