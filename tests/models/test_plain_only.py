"""Models that are refused for trees decode plainly, if that is asked for; and never with drafts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draft_heads import new_heads
from entmtp.cli.app import run_command
from entmtp.engine import Engine, GenerationParams
from entmtp.errors import ModelRefused
from entmtp.scheduler import StaticPolicy
from entmtp.target.gguf_file import quiet
from entmtp.target.load import load_target
from entmtp.target.plain import PlainTarget
from entmtp.trees import chain
from fixtures import byte_tokenizer
from model_matrix import NUM_TOKENS, PROMPTS, SAMPLINGS, generated
from model_roster import ROWS, build
from reference import ids_of, run, slow_ids

REFUSED = {row.name: row for row in ROWS if row.refused}
WITHOUT_A_PLAIN_WAY = {
    "rwkv: recurrent": "other logits for plain decoding",  # its state is not in the cache
    "qwen3_next: linear and full layers": "does not run",  # three layers have none of full kind
    "llama4_text: chunked attention": "does not run",
}


def saved(name: str, folder: Path) -> Path:
    with quiet():
        build(REFUSED[name]).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in WITHOUT_A_PLAIN_WAY])
def test_plain_decoding_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    folder = str(saved(name, tmp_path))
    with pytest.raises(ModelRefused, match=REFUSED[name].refused):
        load_target(folder, "float32")
    told: list[str] = []
    target = load_target(folder, "float32", allow_plain=True, progress=told.append)
    assert isinstance(target, PlainTarget)
    assert REFUSED[name].refused in target.tree_refusal
    assert told == [f"plain decoding only: {target.tree_refusal}"]
    requests = [(p, GenerationParams(NUM_TOKENS, s)) for s in SAMPLINGS for p in PROMPTS]
    engine = Engine(target, max_batch_size=4, min_rows=7)
    answers = ids_of(run(engine, requests))
    assert engine.num_cache_bytes == 0
    with quiet():
        bare = build(REFUSED[name])
    for (prompt, params), ids in zip(requests, answers, strict=True):
        if params.sampling.is_greedy:
            assert ids == generated(bare, prompt, NUM_TOKENS)
        else:
            assert ids == slow_ids(bare, prompt, params.sampling, NUM_TOKENS)


@pytest.mark.parametrize("name", WITHOUT_A_PLAIN_WAY)
def test_a_model_that_does_not_even_decode_plainly_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=WITHOUT_A_PLAIN_WAY[name]):
        load_target(str(saved(name, tmp_path)), "float32", allow_plain=True)


def test_a_good_model_stays_one_for_trees(tmp_path: Path) -> None:
    build(ROWS[0]).save_pretrained(tmp_path)
    target = load_target(str(tmp_path), "float32", allow_plain=True)
    assert not isinstance(target, PlainTarget)
    assert target.tree_refusal == ""


def test_drafts_are_refused_with_the_reason(tmp_path: Path) -> None:
    target = load_target(str(saved("bloom: alibi", tmp_path)), "float32", allow_plain=True)
    with pytest.raises(ModelRefused, match=r"policy static drafts.*plain decoding only: bloom has"):
        Engine(target, new_heads(target, "medusa"), StaticPolicy(chain(2)))


def test_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved("falcon: alibi", tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    command = ["generate", "\1\2", "--model", str(tmp_path), "--dtype", "float32", "--json"]
    command += ["--max-tokens", "5"]
    assert run_command(command) == 2
    refusal = capsys.readouterr().err
    assert refusal.startswith("entmtp: falcon with alibi")
    assert run_command([*command, "--allow-plain"]) == 0
    shown = capsys.readouterr()
    assert "plain decoding only: falcon with alibi" in shown.err
    assert json.loads(shown.out.splitlines()[-1])["method"] == "plain"
