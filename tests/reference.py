"""Plain decoding the slow way, and short ways to run an engine.

The reference has no cache of ours, no mask of ours and no processor of ours: whole sequences
through `transformers`, its own logits processors, and the keyed noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from transformers import PreTrainedModel
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from entmtp.decode import Sampling
from entmtp.decode.noise import gumbel_noise
from entmtp.engine import Engine, FinishEvent, GenerationParams, Result

Request = tuple[Sequence[int], GenerationParams]


@torch.no_grad()
def slow_ids(
    model: PreTrainedModel, prompt: Sequence[int], sampling: Sampling, num_tokens: int
) -> tuple[int, ...]:
    """What `prompt` must be followed by."""
    ids = torch.tensor([list(prompt)])
    for _ in range(num_tokens):
        scores = model(input_ids=ids, use_cache=False).logits[:, -1].float()
        scores = processed(ids, scores, sampling, len(prompt))
        if not sampling.is_greedy:
            scores = filtered(ids, scores, sampling)
            key = torch.tensor([sampling.seed]), torch.tensor([ids.shape[1]])
            scores = scores + gumbel_noise(*key, scores.shape[-1])
        ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], 1)
    return tuple(ids[0, len(prompt) :].tolist())


def processed(
    ids: torch.Tensor, scores: torch.Tensor, sampling: Sampling, num_prompt: int
) -> torch.Tensor:
    """Scores `[1, V]` after `transformers`' own processors, and OpenAI's penalties by hand."""
    if sampling.logit_bias:
        biases = [[[token_id], float(bias)] for token_id, bias in sampling.logit_bias]
        scores = SequenceBiasLogitsProcessor(biases)(ids, scores)
    if sampling.repetition_penalty != 1:
        penalty = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
        scores = penalty(ids, scores)
    scores = scores.clone()
    for token, count in Counter(ids[0, num_prompt:].tolist()).items():
        scores[0, token] -= count * sampling.frequency_penalty + sampling.presence_penalty
    if sampling.banned_ids:
        banned = [list(sequence) for sequence in sampling.banned_ids]
        scores = NoBadWordsLogitsProcessor(banned)(ids, scores)
    for token_id, count in sampling.delays:
        early = MinNewTokensLengthLogitsProcessor(num_prompt, count, token_id)
        scores = early(ids, scores)
    return scores


def filtered(ids: torch.Tensor, scores: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Scores after `transformers`' own temperature, top-k, top-p and min-p."""
    scores = TemperatureLogitsWarper(sampling.temperature)(ids, scores)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(ids, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(ids, scores)
    if sampling.min_p:
        scores = MinPLogitsWarper(sampling.min_p)(ids, scores)
    return scores


def run(engine: Engine, requests: Iterable[Request]) -> list[Result]:
    """All requests together, as far as the engine's batch goes; results in order."""
    request_ids = [engine.add(prompt, params) for prompt, params in requests]
    return [result_of(engine, request_id) for request_id in request_ids]


def result_of(engine: Engine, request_id: int) -> Result:
    for event in engine.events(request_id):
        if isinstance(event, FinishEvent):
            return event.result
    raise AssertionError("events end with a FinishEvent")


def ids_of(results: Iterable[Result]) -> list[tuple[int, ...]]:
    return [result.token_ids for result in results]


def random_prompts(count: int, vocab_size: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Prompts of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [
        torch.randint(vocab_size, (length,), generator=generator).tolist() for length in lengths
    ]
