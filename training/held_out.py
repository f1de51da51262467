"""The prompts that the shipped heads were never trained on: what their banks are calibrated with.

    .venv/bin/python training/held_out.py PROMPTS.jsonl OUT.jsonl

Training holds a share of the prompts out, by a hash of each prompt's ids (`split_rows`). On the
others heads are surer than on anything a user asks, and a bank would trust them too much.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from transformers import AutoTokenizer

from entmtp.data import chat_ids, read_prompts
from entmtp.errors import EntmtpError
from entmtp.target.embedded import embedded_model, fetch_embedded
from entmtp.train.config import TrainConfig
from entmtp.train.dataset import is_held_out
from entmtp.train.rows import prompt_key


def main(prompts: Path, out: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(fetch_embedded(embedded_model("smollm2-135m")))
    share = TrainConfig().validation_share
    half = out.with_suffix(".part")
    with half.open("w", encoding="utf-8") as lines:
        for prompt in read_prompts(prompts):
            if is_held_out(prompt_key(chat_ids(tokenizer, prompt.messages)), share):
                row = {"id": prompt.id, "kind": prompt.kind, "prompt": prompt.text}
                lines.write(json.dumps(row, ensure_ascii=False) + "\n")
    half.replace(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts", type=Path, metavar="PROMPTS.jsonl")
    parser.add_argument("out", type=Path, metavar="OUT.jsonl")
    arguments = parser.parse_args()
    try:
        main(arguments.prompts, arguments.out)
    except EntmtpError as error:
        parser.error(str(error))
