"""The target answers prompts: the text that its heads are trained on.

Knows: prompts, the engine, and a file that grows by one line an answer. Does not know: features,
heads. Stopped at any time, it goes on where the file ends.

Self-distillation wants the target's own words, in the shares in which it will be used: kinds of
prompts take turns, so that a large source does not drown a small one; a prompt that comes round
again is answered by sampling with another seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from entmtp.data import Prompt
from entmtp.decode import Sampling
from entmtp.engine import Engine, FinishEvent, GenerationParams, Result
from entmtp.errors import BadInput
from entmtp.target import TargetModel
from entmtp.train.rows import check_model

Progress = Callable[[int], None]
"""Called with the number of answer tokens so far."""


@dataclass(frozen=True)
class AnswerConfig:
    """How much is answered, and how."""

    num_tokens: int = 1_000_000
    """Answer tokens to produce in all."""
    max_tokens: int = 224
    """Tokens of one answer at the most."""
    max_prompt_tokens: int = 256
    """Longer prompts are left out."""
    sampled_share: float = 0.4
    """Share of first answers that are sampled; later answers to a prompt all are."""
    temperature: float = 0.7
    """Temperature of sampled answers."""
    batch_size: int = 64
    """Answers in progress at a time."""
    seed: int = 0
    """Order of prompts, and the first sampling seed."""


class PlannedAnswer(NamedTuple):
    """One answer to be made; `number` is its place in the plan and its name in the file."""

    number: int
    prompt: Prompt
    sampling: Sampling


def plan_answers(prompts: Sequence[Prompt], config: AnswerConfig) -> Iterator[PlannedAnswer]:
    """An endless plan: kinds take turns, each in a shuffled order of its own, round and round."""
    kinds: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.kind, []).append(prompt)
    order = sorted(kinds)
    for items in kinds.values():
        Random(config.seed).shuffle(items)
    for number in count():
        items = kinds[order[number % len(order)]]
        visit, place = divmod(number // len(order), len(items))
        is_sampled = visit > 0 or _fraction(items[place].id) < config.sampled_share
        sampling = Sampling(
            temperature=config.temperature if is_sampled else 0.0, seed=config.seed + number
        )
        yield PlannedAnswer(number, items[place], sampling)


def _fraction(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32


def make_answers(
    target: TargetModel,
    prompts: Sequence[Prompt],
    file: Path,
    config: AnswerConfig,
    progress: Progress = lambda num_tokens: None,
) -> int:
    """Append answers to `file` until it holds `config.num_tokens` answer tokens; their number.

    A file that holds as many already stays as it is.

    Raises:
        BadInput: no prompt is short enough, or the file holds something else than this model's
            answers.
    """
    done, num_tokens = _read_done(file, target.fingerprint)
    if num_tokens >= config.num_tokens:
        return num_tokens
    engine = Engine(target, max_batch_size=config.batch_size)
    short = [p for p in prompts if len(engine.encode(p.messages)) <= config.max_prompt_tokens]
    if not short:
        raise BadInput(
            f"none of {len(prompts)} prompts has {config.max_prompt_tokens} tokens or fewer;"
            " give shorter prompts or a larger limit"
        )
    plan = (item for item in plan_answers(short, config) if item.number not in done)
    with file.open("a", encoding="utf-8") as lines:
        for item, result in _answer(engine, plan, config):
            prompt_ids = engine.encode(item.prompt.messages)
            lines.write(_line(item, prompt_ids, result, target.fingerprint))
            lines.flush()
            num_tokens += len(result.token_ids)
            progress(num_tokens)
            if num_tokens >= config.num_tokens:
                break
    return num_tokens


def _answer(
    engine: Engine, plan: Iterator[PlannedAnswer], config: AnswerConfig
) -> Iterator[tuple[PlannedAnswer, Result]]:
    """Answers as they finish; as many in progress as the engine's batch holds."""
    running: dict[int, PlannedAnswer] = {}
    try:
        while True:
            while len(running) < config.batch_size:
                item = next(plan)
                params = GenerationParams(max_tokens=config.max_tokens, sampling=item.sampling)
                running[engine.add(item.prompt.messages, params)] = item
            engine.step()
            for request_id in list(running):
                for event in engine.take_events(request_id):
                    if isinstance(event, FinishEvent):
                        yield running.pop(request_id), event.result
    finally:
        for request_id in running:
            engine.forget(request_id)


def _line(item: PlannedAnswer, prompt_ids: list[int], result: Result, fingerprint: str) -> str:
    fields = {
        "number": item.number,
        "id": item.prompt.id,
        "kind": item.prompt.kind,
        "model": fingerprint,
        "prompt_ids": prompt_ids,
        "answer_ids": list(result.token_ids),
        "temperature": item.sampling.temperature,
        "finish_reason": result.finish_reason,
    }
    return json.dumps(fields) + "\n"


def _read_done(file: Path, fingerprint: str) -> tuple[set[int], int]:
    """Numbers already answered and their tokens; a last line cut by a kill is dropped."""
    if not file.exists():
        return set(), 0
    text = file.read_text(encoding="utf-8")
    whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(whole, start=1):
        try:
            row = json.loads(line)
            rows.append({"number": int(row["number"]), "size": len(row["answer_ids"])})
            check_model(row, fingerprint, f"{file}:{number}")
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"{file}:{number}: not an answer ({error}); give a new file or remove the line"
            ) from error
    if len("".join(whole)) < len(text):
        temporary = file.with_suffix(".tmp")
        temporary.write_text("".join(whole), encoding="utf-8")
        temporary.replace(file)
    return {row["number"] for row in rows}, sum(row["size"] for row in rows)
