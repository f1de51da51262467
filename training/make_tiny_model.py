"""A small language model made on the spot: the second model of `docs/train-heads.md`.

    .venv/bin/python training/make_tiny_model.py OUT [TEXT ...]

Learns for about two minutes on one core from text files (this repository's sources and documents
where none are given) and leaves in OUT a checkpoint as `transformers` writes it, without a chat
template, and `prompts.jsonl`: the first lines of paragraphs. It writes things that look like the
text and mean little; for trying out how heads are trained that is enough.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).parents[1]
END = "<|end|>"
NUM_STEPS, BATCH, LENGTH, RATE = 500, 12, 128, 4e-3


def main(out: Path, files: list[Path]) -> None:
    torch.manual_seed(0)
    paragraphs = [p for file in files for p in file.read_text(encoding="utf-8").split("\n\n") if p]
    tokenizer = make_tokenizer(paragraphs)
    end = tokenizer.eos_token_id
    ids = torch.tensor([i for p in paragraphs for i in [*tokenizer(p)["input_ids"], end]])
    model = make_model(len(tokenizer), end)
    learn(model, ids)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    prompts = sorted({p.strip()[:24] for p in paragraphs if len(p) > 100})
    lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in prompts]
    (out / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    print(f"{out}: a model of {model.num_parameters():,} parameters and {len(lines)} prompts")


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=[END], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def make_model(vocab_size: int, end: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
    )
    return LlamaForCausalLM(config)


def learn(model: LlamaForCausalLM, ids: torch.Tensor) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98))
    for step in range(NUM_STEPS):
        rate = min(1.0, (step + 1) / 30) * 0.5 * (1 + math.cos(math.pi * step / NUM_STEPS))
        for group in optimiser.param_groups:
            group["lr"] = RATE * rate
        starts = torch.randint(len(ids) - LENGTH, (BATCH,))
        batch = torch.stack([ids[start : start + LENGTH] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 0 or step == NUM_STEPS - 1:
            print(f"step {step}: loss {loss.item():.2f}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("texts", type=Path, nargs="*", metavar="TEXT")
    arguments = parser.parse_args()
    own = [*sorted(ROOT.glob("src/**/*.py")), *sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"]
    main(arguments.out, arguments.texts or own)
