"""Answers are made until there are enough, by one model, and not twice."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from entmtp.data import Message, Prompt
from entmtp.errors import BadInput
from entmtp.target import TargetModel
from entmtp.train.answers import AnswerConfig, make_answers
from fixtures import byte_tokenizer, tiny_model

CONFIG = AnswerConfig(num_tokens=40, max_tokens=8, batch_size=3)
PROMPTS = tuple(Prompt(text, "", (Message("user", text),)) for text in ("one", "two", "three"))


def model(seed: int = 0) -> TargetModel:
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.chat_template = "{{ messages[0].content }}"
    return TargetModel.from_transformers(tiny_model(vocab_size=258, seed=seed), tokenizer)


def test_a_file_with_enough_tokens_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    num_tokens = make_answers(model(), PROMPTS, file, CONFIG)
    assert num_tokens >= 40
    before = file.read_bytes()
    assert make_answers(model(), PROMPTS, file, CONFIG) == num_tokens
    assert file.read_bytes() == before


def test_a_line_cut_by_a_kill_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    make_answers(model(), PROMPTS, file, CONFIG)
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    make_answers(model(), PROMPTS, file, CONFIG)
    numbers = [json.loads(line)["number"] for line in file.read_text().splitlines()]
    assert len(set(numbers)) == len(numbers) == len(whole.splitlines())


def test_answers_of_another_model_are_refused_by_line(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    make_answers(model(), PROMPTS, file, CONFIG)
    with pytest.raises(BadInput, match=r"answers.jsonl:1 is an answer of the model"):
        make_answers(model(seed=1), PROMPTS, file, CONFIG)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        del row["model"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert make_answers(model(seed=1), PROMPTS, file, CONFIG) >= 40
