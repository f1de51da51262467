"""Cases M01 to M07, M12 and B15 of known faults: models, their caches, dtypes and vocabularies.

Every architecture goes through the matrix (`models/test_matrix.py`); quantised models stand in
`models/test_quantised.py`, attention that ignores masks in `target/test_selfcheck.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from draft_heads import KINDS, new_heads, random_heads
from entmtp.bench.rounding import MAX_RATIO, first_difference, float32_twin, rounding_ratio
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.errors import BadInput, ModelRefused
from entmtp.heads import build_heads, load_heads, save_heads, start_from_target
from entmtp.scheduler import StaticPolicy
from entmtp.target import TargetModel
from entmtp.target.load import load_target
from entmtp.trees import Tree, chain, full, tree_buffers
from fixtures import piece_tokenizer, tiny, tiny_model
from model_matrix import PROMPTS, demand_exactness, generated
from model_roster import ROWS, build
from reference import Request, ids_of, random_prompts, run

FULL = full(8, 2)
ORIGINAL = 32
"""Tokens for which the tiny models with a scaled rope were, as it were, trained"""


def requests(num_tokens: int = 40) -> list[Request]:
    samplings = (Sampling(), Sampling(temperature=0.7, seed=1))
    return [
        (p, GenerationParams(num_tokens, s)) for s in samplings for p in random_prompts(3, 8, 40)
    ]


def assert_law(target: TargetModel, kinds: tuple[str, ...] = KINDS) -> None:
    plain = ids_of(run(Engine(target), requests()))
    for kind in kinds:
        engine = Engine(target, random_heads(target, kind), StaticPolicy(FULL))
        assert ids_of(run(engine, requests())) == plain


def test_M01_the_cache_is_as_large_as_its_key_and_value_heads() -> None:
    sizes = {}
    for num_kv_heads in (1, 2, 4):
        model = tiny_model(num_key_value_heads=num_kv_heads)
        target = TargetModel.from_transformers(model)
        assert_law(target, ("hydra++",))
        sizes[num_kv_heads] = target.new_cache(2, 10).num_bytes
    # 3 layers, keys and values, 2 sequences of 10 tokens, heads of 16 numbers of 4 bytes.
    assert sizes == {heads: 3 * 2 * 2 * 10 * heads * 16 * 4 for heads in (1, 2, 4)}


def test_M02_a_head_size_that_is_not_hidden_by_heads() -> None:
    target = tiny("qwen3")
    layer: Any = target.transformers_model.model.layers[0]
    assert layer.self_attn.q_proj.weight.shape == (128, 64)
    assert target.new_cache(1, 1).layer(0)[0].shape[-1] == 32
    for kind in KINDS:
        assert new_heads(target, kind).hidden_size == target.hidden_size == 64
    assert_law(target)


def test_M03_tied_embeddings(tmp_path: Path) -> None:
    tiny_model(tie_word_embeddings=True).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 - not a dictionary
    target = load_target(str(tmp_path), "float32")
    assert torch.equal(target.output_weight, target.embedding_weight)
    heads = new_heads(target, "medusa")
    start_from_target(heads, target)
    for head in range(heads.num_draft_heads):
        assert torch.equal(heads.output(head)[0], target.embedding_weight)
    assert_law(target)


def rope(kind: str, **more: object) -> dict[str, Any]:
    scaled = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 8.0, **more}
    return {"rope_parameters": scaled, "max_position_embeddings": 256}


ORIGINALLY = {"original_max_position_embeddings": ORIGINAL}
ROPES = {
    "default": rope("default"),
    "linear": rope("linear"),
    "yarn": rope("yarn", **ORIGINALLY),
    "llama3": rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINALLY),
}
CHANGING = {
    "dynamic": rope("dynamic") | {"max_position_embeddings": ORIGINAL},
    "longrope": rope("longrope", short_factor=[1.0] * 8, long_factor=[8.0] * 8, **ORIGINALLY),
}


@torch.no_grad()
def assert_same_logits(model: PreTrainedModel, target: TargetModel, length: int) -> None:
    """Of a prompt in two forwards, and of a whole forward of `transformers`."""
    ids = torch.tensor([random_prompts(1, 8, length, seed=length)[0] * length])[:, :length]
    expected = model(input_ids=ids).logits
    cache = target.new_cache(1, length)
    parts = [*target.prefill(ids[:, : length // 2], cache)]
    parts += [*target.prefill(ids[:, length // 2 :], cache)]
    assert torch.allclose(target.logits(torch.cat(parts, 1)), expected, atol=1e-4)


@pytest.mark.parametrize("kind", ROPES)
def test_M04_scaled_ropes(kind: str) -> None:
    model = tiny_model(**ROPES[kind])
    target = TargetModel.from_transformers(tiny_model(**ROPES[kind]))
    for length in (8, 120):
        assert_same_logits(model, target, length)
    prompt = random_prompts(1, 8, 5)[0] * 120
    params = GenerationParams(24)
    plain = Engine(target).generate(prompt[:120], params).token_ids
    drafted = Engine(target, random_heads(target, "hydra"), StaticPolicy(FULL))
    assert drafted.generate(prompt[:120], params).token_ids == plain
    assert plain == generated(model, prompt[:120], 24)


@pytest.mark.parametrize("kind", CHANGING)
def test_M04_ropes_that_change_with_the_length_end_where_they_would(kind: str) -> None:
    model = tiny_model(**CHANGING[kind])
    target = TargetModel.from_transformers(tiny_model(**CHANGING[kind]))
    assert target.max_length == ORIGINAL
    assert_same_logits(model, target, 8)
    assert_same_logits(model, target, ORIGINAL)
    prompt, engine = [1, 2, 3], Engine(target, random_heads(target, "hydra"), StaticPolicy(FULL))
    # Twice: nothing of the first text's length is left behind.
    for _ in range(2):
        result = engine.generate(prompt, GenerationParams(None))
        assert len(prompt) + len(result.token_ids) == ORIGINAL
        assert result.token_ids == generated(model, prompt, ORIGINAL - len(prompt))
    with pytest.raises(BadInput, match="120 tokens and the model's context 32"):
        engine.generate([1] * 120)


def test_M04_an_unknown_rope_is_refused(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"rope_parameters": {"rope_type": "spiral"}}))
    with pytest.raises(ModelRefused, match="asks for the rope type 'spiral'; known are default, d"):
        load_target(str(tmp_path))
    model = tiny_model()
    model.config.rope_parameters["rope_type"] = "spiral"
    with pytest.raises(ModelRefused, match="asks for the rope type 'spiral'"):
        TargetModel.from_transformers(model)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma2", "deepseek_v3"])
def test_M06_after_a_rejected_block_the_logits_are_those_of_a_clean_forward(
    model_type: str,
) -> None:
    row = next(row for row in ROWS if row.model_type == model_type and "no " not in row.what)
    model, target = build(row), TargetModel.from_transformers(build(row))
    tree = Tree.from_paths([(0,), (1,), (1, 0), (1, 1), (1, 1, 0)])
    buffers = tree_buffers((tree, tree), target.device)
    cache = target.new_cache(2, 4)
    texts = [[1, 2, 3, 4, 5, 6, 7, 0, 2], [5, 1]]
    with torch.inference_mode():
        for row_index, text in enumerate(texts):
            list(target.prefill(torch.tensor([text]), cache.view(row_index, row_index + 1)))
        generator = torch.Generator().manual_seed(0)
        # What is kept of each tree: nothing but the root, a branch, both.
        for slots in ([[0], [0]], [[0, 2, 4], [0]], [[0], [0, 2, 3]], [[0, 1], [0, 2, 4, 5]]):
            ids = torch.randint(8, (2, tree.num_nodes), generator=generator)
            lengths = torch.tensor(cache.lengths)[:, None]
            hidden = target.forward(ids, lengths + buffers.depths, buffers.mask, cache)
            padded = torch.tensor([kept + [0] * (4 - len(kept)) for kept in slots])
            cache.keep(padded, [len(kept) for kept in slots])
            for text, kept, nodes, states in zip(texts, slots, ids.tolist(), hidden, strict=True):
                text += [nodes[slot] for slot in kept]
                clean = model(input_ids=torch.tensor([text])).logits[0, -1]
                assert torch.allclose(target.logits(states[kept[-1]]), clean, atol=1e-4)
    assert cache.lengths == [len(text) for text in texts]


@pytest.mark.parametrize("setting", ["eager", "sdpa"])
@pytest.mark.parametrize("model_type", ["llama", "gpt_oss", "falcon"])
def test_M07_whatever_attention_is_asked_for_the_tree_is_seen(
    model_type: str, setting: str
) -> None:
    row = next(row for row in ROWS if row.model_type == model_type)
    bare, wrapped = build(row), build(row)
    for config in (bare.config, wrapped.config):
        if model_type != "gpt_oss":  # it has no sdpa
            config._attn_implementation = setting
    demand_exactness(bare, TargetModel.from_transformers(wrapped))


@pytest.mark.parametrize(
    ("base", "stored"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float16), (torch.float16,) * 2],
)
@pytest.mark.parametrize("kind", KINDS)
def test_M12_dtypes_of_base_and_heads_may_differ(
    base: torch.dtype, stored: torch.dtype, kind: str, tmp_path: Path
) -> None:
    target = TargetModel.from_transformers(tiny_model(dtype=base), name="tiny")
    save_heads(random_heads(target, kind), tmp_path, target, {}, stored)
    heads = load_heads(tmp_path, target)
    assert {weight.dtype for weight in heads.parameters()} == {base}
    asked = requests(24)
    plain = ids_of(run(Engine(target), asked))
    drafted = ids_of(run(Engine(target, heads, StaticPolicy(chain(3))), asked))
    if base == torch.float32:
        assert drafted == plain
    for (prompt, params), one, other in zip(asked, plain, drafted, strict=True):
        place = first_difference(one, other)
        if place is not None:
            pair = one[place], other[place]
            prefix = [*prompt, *one[:place]]
            ratio = rounding_ratio(target, float32_twin(target), prefix, pair, params.sampling)
            assert ratio is None or ratio <= MAX_RATIO


NUM_TOKENIZED, NUM_ROWS = 100, 128


@pytest.fixture(scope="module")
def padded() -> TargetModel:
    """128 output rows, 100 of them in the tokenizer; the others are as likely as any."""
    model = tiny_model(vocab_size=NUM_ROWS)
    with torch.no_grad():
        model.lm_head.weight[NUM_TOKENIZED:] *= 1.5
    tokenizer = piece_tokenizer([f"<{index}>" for index in range(NUM_TOKENIZED)])
    return TargetModel.from_transformers(model, tokenizer, name="padded")


@pytest.mark.parametrize("draft_vocab_size", [NUM_TOKENIZED, NUM_ROWS])
@pytest.mark.parametrize("kind", KINDS)
def test_B15_rows_past_the_tokenizer_are_said_as_plain_decoding_says_them(
    padded: TargetModel, draft_vocab_size: int, kind: str, tmp_path: Path
) -> None:
    config = new_heads(padded, kind).config
    heads = build_heads(replace(config, draft_vocab_size=draft_vocab_size))
    if heads.draft_ids is not None:
        heads.draft_ids.copy_(torch.arange(NUM_TOKENIZED))
    heads.bind(padded)
    start_from_target(heads, padded)
    save_heads(heads, tmp_path, padded, {}, torch.float32)
    asked = requests(40)
    plain = run(Engine(padded), asked)
    assert any(token >= NUM_TOKENIZED for result in plain for token in result.token_ids)
    engine = Engine(padded, load_heads(tmp_path, padded), StaticPolicy(full(3, 3)))
    drafted = run(engine, asked)
    assert ids_of(drafted) == ids_of(plain)
    for result in plain + drafted:
        pieces = [f"<{token}>" for token in result.token_ids if token < NUM_TOKENIZED]
        assert result.text == "".join(pieces)


def test_B15_more_output_rows_than_embeddings_are_refused() -> None:
    model = tiny_model(vocab_size=NUM_TOKENIZED)
    model.set_output_embeddings(torch.nn.Linear(64, NUM_ROWS, bias=False))
    with pytest.raises(ModelRefused, match="128 output rows and 100 input embeddings"):
        TargetModel.from_transformers(model)


def test_B15_a_token_added_to_the_tokenizer_alone_is_named() -> None:
    tokenizer = piece_tokenizer([f"<{index}>" for index in range(NUM_TOKENIZED)])
    tokenizer.add_tokens(["<new>"])
    model = tiny_model(vocab_size=NUM_TOKENIZED)
    target = TargetModel.from_transformers(model, tokenizer)
    with pytest.raises(BadInput, match="token id 100 is outside the vocabulary of 100"):
        Engine(target).generate("<new>")


def test_B15_the_same_ids_as_transformers(padded: TargetModel) -> None:
    answer = Engine(padded).generate(PROMPTS[0], GenerationParams(30)).token_ids
    with padded.own_attention() as model:
        assert answer == generated(model, PROMPTS[0], 30)
    assert any(one >= NUM_TOKENIZED > other for one, other in pairwise(answer))
