"""The target answers prompts: the text that its heads are trained on.

Knows: prompts, the engine, and a file that grows by one line an answer. Does not know: features,
heads.

The file is a function of the model, the prompts and the configuration: answers stand in the order
of their plan, and wait for one another where they finish in another order. Killed at any time and
started again, it goes on where it ends and becomes the file it would have been (in float32, in
which an answer does not depend on its company). `answers.json` beside it says what it was made
with.

Self-distillation wants the target's own words, in the shares in which it will be used: kinds of
prompts take turns, so that a large source does not drown a small one; a prompt that comes round
again is answered by sampling with another seed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import NamedTuple

from entmtp.data import Prompt
from entmtp.data.made_with import MadeWith, is_stale, read_made_with, write_made_with
from entmtp.data.strict_json import parse_json
from entmtp.decode import Sampling
from entmtp.engine import Engine, FinishEvent, GenerationParams, Result
from entmtp.engine.questions import Question, encode_prompts
from entmtp.errors import BadInput
from entmtp.target import TargetModel

SCHEMA_VERSION = 2
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
    """One answer to be made; `number` is its place in the plan and in the file."""

    number: int
    question: Question
    sampling: Sampling


class Done(NamedTuple):
    """What a file holds already."""

    num_answers: int
    num_tokens: int


def plan_answers(questions: Sequence[Question], config: AnswerConfig) -> Iterator[PlannedAnswer]:
    """An endless plan: kinds take turns, each in a shuffled order of its own, round and round."""
    kinds: dict[str, list[Question]] = {}
    for question in questions:
        kinds.setdefault(question.kind, []).append(question)
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
    *,
    restart: bool = False,
) -> int:
    """Append answers to `file` until it holds `config.num_tokens` answer tokens; their number.

    A file that holds as many already stays as it is.

    Args:
        restart: a file made with other prompts, settings or another model is made anew.

    Raises:
        BadInput: no prompt is short enough, or the file holds something else than answers.
        ArtefactError: the file was made with something else, and is not to be made anew.
    """
    questions = encode_prompts(target, prompts, config.max_prompt_tokens)
    done = _take_up(file, _made_with(target, questions, config), restart)
    num_tokens = done.num_tokens
    progress(num_tokens)
    if num_tokens >= config.num_tokens:
        return num_tokens
    plan = islice(plan_answers(questions, config), done.num_answers, None)
    engine = Engine(target, max_batch_size=config.batch_size)
    with file.open("a", encoding="utf-8") as lines:
        for item, result in _in_order(_answer(engine, plan, config), done.num_answers):
            lines.write(_line(item, result, target.fingerprint))
            lines.flush()
            num_tokens += len(result.token_ids)
            progress(num_tokens)
            if num_tokens >= config.num_tokens:
                break
    return num_tokens


def _take_up(file: Path, made_with: MadeWith, restart: bool) -> Done:
    """What of a file can be gone on with, and a note beside it of what it is made with."""
    note = file.with_suffix(".json")
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and is_stale(file, read_made_with(note), made_with, restart=restart):
        file.unlink()
    write_made_with(note, made_with)
    return _read_done(file)


def _made_with(
    target: TargetModel, questions: Sequence[Question], config: AnswerConfig
) -> MadeWith:
    settings = asdict(config)
    for name in ("num_tokens", "batch_size"):  # how far, and how fast
        settings.pop(name)
    digest = hashlib.sha256(json.dumps(questions).encode()).hexdigest()[:16]
    return {
        "schema_version": SCHEMA_VERSION,
        "model": target.fingerprint,
        "dtype": str(target.dtype).removeprefix("torch."),
        "num_prompts": len(questions),
        "prompts": digest,
        **settings,
    }


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
                running[engine.add(item.question.prompt_ids, params)] = item
            engine.step()
            for request_id in list(running):
                for event in engine.take_events(request_id):
                    if isinstance(event, FinishEvent):
                        yield running.pop(request_id), event.result
    finally:
        for request_id in running:
            engine.forget(request_id)


def _in_order(
    finished: Iterable[tuple[PlannedAnswer, Result]], number: int
) -> Iterator[tuple[PlannedAnswer, Result]]:
    """The same in the order of their numbers, from `number` on."""
    waiting: dict[int, tuple[PlannedAnswer, Result]] = {}
    for item, result in finished:
        waiting[item.number] = (item, result)
        while number in waiting:
            yield waiting.pop(number)
            number += 1


def _line(item: PlannedAnswer, result: Result, fingerprint: str) -> str:
    fields = {
        "number": item.number,
        "id": item.question.id,
        "kind": item.question.kind,
        "model": fingerprint,
        "prompt_ids": item.question.prompt_ids,
        "answer_ids": list(result.token_ids),
        "temperature": item.sampling.temperature,
        "finish_reason": result.finish_reason,
    }
    return json.dumps(fields) + "\n"


def _read_done(file: Path) -> Done:
    """The whole lines of a file; a last line cut by a kill is dropped."""
    if not file.exists():
        return Done(0, 0)
    num_answers = num_tokens = num_bytes = 0
    with file.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break
            try:
                fields = parse_json(line.decode("utf-8"))
                is_next = fields["number"] == num_answers
                num_tokens += len(fields["answer_ids"])
            except (ValueError, KeyError, TypeError):
                is_next = False
            if not is_next:
                raise BadInput(
                    f"{file}:{num_answers + 1}: expected answer number {num_answers}, as this"
                    " program wrote it; pass --restart to make the answers anew"
                )
            num_answers += 1
            num_bytes += len(line)
    os.truncate(file, num_bytes)
    return Done(num_answers, num_tokens)
