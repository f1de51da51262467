"""Put the stored answers behind their prompts again, for `entmtp train-heads --answers`.

    .venv/bin/python training/join_prompts.py PROMPTS.jsonl ANSWERS.jsonl [--stored FILE.jsonl.gz]

The project carries the model's answers but not the prompts: those come from `PROMPTS.jsonl`
(JSON lines with `id` and `prompt`) and are put into the model's chat form here.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

from transformers import AutoTokenizer

from entmtp.data import chat_ids, read_prompts
from entmtp.errors import BadInput, EntmtpError
from entmtp.target.embedded import embedded_model, fetch_embedded

STORED = Path(__file__).parent / "answers.smollm2-135m.jsonl.gz"


def main(prompts: Path, out: Path, stored: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(fetch_embedded(embedded_model("smollm2-135m")))
    by_id = {prompt.id: prompt for prompt in read_prompts(prompts)}
    half = out.with_suffix(".part")
    with gzip.open(stored, "rt", encoding="utf-8") as answers, half.open("w") as lines:
        for line in answers:
            row = json.loads(line)
            if row["id"] not in by_id:
                raise BadInput(f"{prompts} lacks the prompt {row['id']}; give the file with all")
            row["prompt_ids"] = chat_ids(tokenizer, by_id[row["id"]].messages)
            lines.write(json.dumps(row) + "\n")
    half.replace(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts", type=Path, metavar="PROMPTS.jsonl")
    parser.add_argument("answers", type=Path, metavar="ANSWERS.jsonl")
    parser.add_argument("--stored", type=Path, default=STORED, metavar="FILE.jsonl.gz")
    arguments = parser.parse_args()
    try:
        main(arguments.prompts, arguments.answers, arguments.stored)
    except EntmtpError as error:
        parser.error(str(error))
