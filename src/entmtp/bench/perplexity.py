"""How likely the target finds the answers that methods gave.

Knows: a target, prompts and answers as ids. Does not know: methods beyond their names, speed.

Teacher-forced behind the prompt, from the target's own distribution at temperature 1, unprocessed,
whatever the sampling was. Equal answers are looked at once: lossless methods cost nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from entmtp.measure.paired import Runs, Task
from entmtp.measure.statistics import geometric_mean_interval
from entmtp.target import TargetModel


class Perplexity(NamedTuple):
    """Of one method's answers; None where nothing was said."""

    value: float | None
    """exp of the mean negative log-likelihood of all tokens"""
    ratio: float | None
    """To the baseline's: geometric mean over prompts, with its 95 % interval"""
    ratio_low: float | None
    ratio_high: float | None


def answer_perplexities(
    target: TargetModel, tasks: Sequence[Task], runs: Runs, baseline: str
) -> Mapping[str, Perplexity]:
    """The perplexity of each method's answers."""
    known: dict[tuple[Task, tuple[int, ...]], float] = {}
    means: dict[str, list[float | None]] = {}
    values: dict[str, float | None] = {}
    for name, own in runs.items():
        losses = []
        for task, run in zip(tasks, own, strict=True):
            place = task, run.token_ids
            if place not in known:
                known[place] = answer_loss(target, task.prompt_ids, run.token_ids)
            losses.append(known[place])
        counts = [len(run.token_ids) for run in own]
        values[name] = math.exp(math.fsum(losses) / sum(counts)) if sum(counts) else None
        means[name] = [
            loss / count if count else None for loss, count in zip(losses, counts, strict=True)
        ]
    return {
        name: Perplexity(values[name], *_ratio(own, means[baseline])) for name, own in means.items()
    }


def _ratio(
    own: Sequence[float | None], baseline: Sequence[float | None]
) -> tuple[float | None, float | None, float | None]:
    pairs = zip(own, baseline, strict=True)
    return geometric_mean_interval(
        [math.exp(ours - plain) for ours, plain in pairs if ours is not None and plain is not None]
    )


@torch.inference_mode()
def answer_loss(target: TargetModel, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> float:
    """Negative log-likelihood of an answer behind its prompt, in nats, over all of its tokens."""
    if not answer_ids:
        return 0.0
    ids = torch.tensor([[*prompt_ids, *answer_ids]], device=target.device)
    first = len(prompt_ids) - 1  # the row that says what the answer begins with
    total, at = 0.0, 0
    with target.at_work():
        for hidden in target.prefill(ids[:, :-1], target.new_cache(1, ids.shape[1])):
            rows = hidden[0, max(0, first - at) :]
            at += hidden.shape[1]
            if len(rows):
                following = ids[0, at + 1 - len(rows) : at + 1]
                log_probs = target.logits(rows).log_softmax(-1)
                total -= log_probs.gather(1, following[:, None]).double().sum().item()
    return total
