"""Answers are made until there are enough, by one model, and not twice."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from entmtp.data import Message, Prompt
from entmtp.errors import ArtefactError, BadInput
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


def test_answers_stand_in_the_order_of_their_plan(tmp_path: Path) -> None:
    # Answers end by themselves at different lengths, so they finish in another order.
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.chat_template = "{{ messages[0].content }}"
    bare = tiny_model(vocab_size=258)
    said = TargetModel.from_transformers(bare, tokenizer)
    make_answers(said, PROMPTS, tmp_path / "long.jsonl", CONFIG)
    rows = [json.loads(line) for line in (tmp_path / "long.jsonl").read_text().splitlines()]
    bare.generation_config.eos_token_id = [
        row["answer_ids"][index % 5] for index, row in enumerate(rows)
    ]
    target = TargetModel.from_transformers(bare, tokenizer)
    make_answers(target, PROMPTS, tmp_path / "answers.jsonl", CONFIG)
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert len({len(row["answer_ids"]) for row in rows}) > 1
    assert [row["number"] for row in rows] == list(range(len(rows)))


def test_T08_answers_of_other_prompts_or_another_model_are_said(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    make_answers(model(), PROMPTS, file, CONFIG)
    before = file.read_bytes()
    for target, prompts, words in (
        (model(seed=1), PROMPTS, "model .* -> "),
        (model(), PROMPTS[:2], "num_prompts 3 -> 2, prompts"),
    ):
        with pytest.raises(ArtefactError, match=f"other data or settings .{words}.*--restart"):
            make_answers(target, prompts, file, CONFIG)
        assert file.read_bytes() == before
    assert make_answers(model(), PROMPTS[:2], file, CONFIG, restart=True) >= 40
    assert file.read_bytes() != before
    again = file.read_bytes()
    make_answers(model(), PROMPTS[:2], file, CONFIG, restart=True)
    assert file.read_bytes() == again, "what fits is kept"


def test_T04_a_line_of_another_hand_is_named(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    make_answers(model(), PROMPTS, file, CONFIG)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([lines[0], "{}\n", *lines[1:]]))
    with pytest.raises(BadInput, match=r"answers.jsonl:2: expected answer number 1"):
        make_answers(model(), PROMPTS, file, CONFIG)


@pytest.mark.parametrize("value", ["1" + "0" * 400, "NaN", r'"\ud800"', "[" * 100_000])
def test_T04_a_line_that_this_program_never_writes_is_named(tmp_path: Path, value: str) -> None:
    file = tmp_path / "answers.jsonl"
    make_answers(model(), PROMPTS, file, CONFIG)
    lines = file.read_text().splitlines(keepends=True)
    spoilt = lines[1].replace('"temperature": ', f'"more": {value}, "temperature": ')
    file.write_text("".join([lines[0], spoilt, *lines[2:]]))
    with pytest.raises(BadInput, match=r"answers.jsonl:2: expected answer number 1"):
        make_answers(model(), PROMPTS, file, CONFIG)


def test_prompts_that_are_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    long = Prompt("long", "", (Message("user", "x" * 300),))
    with pytest.warns(UserWarning, match="1 of 4 prompts have more than 255 tokens"):
        make_answers(model(), [*PROMPTS, long], tmp_path / "answers.jsonl", CONFIG)
    with pytest.raises(BadInput, match="none of 1 prompts has 1 to 255 tokens"):
        make_answers(model(), [long], tmp_path / "none.jsonl", CONFIG)
