"""`entmtp generate`: one answer, as it comes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from entmtp.cli.options import (
    AsJson,
    DraftOptions,
    LimitOptions,
    SamplingOptions,
    TargetOptions,
    method_name,
    with_options,
)
from entmtp.cli.session import note, open_engine
from entmtp.cli.stream import ShowDrafts, ShowText, legend, show_answer
from entmtp.data import plain_ids
from entmtp.engine import Engine, Prompt, Result
from entmtp.errors import BadInput


@dataclass(frozen=True)
class OutputOptions:
    """What of the answer is shown, and how."""

    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is: no chat template.")
    ] = False
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Colour what was drafted and accepted.")
    ] = False
    as_json: AsJson = False


@with_options
def run(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    target: TargetOptions,
    drafts: DraftOptions,
    sampling: SamplingOptions,
    limits: LimitOptions,
    output: OutputOptions,
) -> None:
    """Answer one prompt, with the text on standard output as it comes.

    Where the model has a chat template the prompt is put into it.
    """
    text = _read_stdin() if prompt == "-" else prompt
    if not text.strip():
        raise BadInput("the prompt is empty; give some text")
    params = limits.params(sampling.sampling())
    engine = open_engine(target, drafts)
    events = engine.stream(_as_asked(engine, text, output.raw), params)
    tokenizer = engine.target.tokenizer
    if output.show_drafts:
        legend()
    result = show_answer(
        events, ShowDrafts(tokenizer, params.stop) if output.show_drafts else ShowText()
    )
    print(flush=True)
    note(statistics_line(engine, result))
    if output.as_json:
        print(json.dumps(report(engine, result)))


def _read_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not UTF-8 ({error}); convert it first") from error


def _as_asked(engine: Engine, text: str, raw: bool) -> Prompt:
    tokenizer = engine.target.tokenizer
    return plain_ids(tokenizer, text) if raw and tokenizer is not None else text


def report(engine: Engine, result: Result) -> dict[str, Any]:
    """What `--json` prints; figures that do not exist are null."""
    stats = result.stats
    trees = engine.policy.trees
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "num_prompt_tokens": stats.num_prompt_tokens,
        "num_tokens": stats.num_tokens,
        "num_steps": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "num_accepted_tokens_per_pos": stats.num_accepted_tokens_per_pos,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "tokens_per_second": stats.tokens_per_second,
        "prefill_seconds": stats.prefill_seconds,
        "decode_seconds": stats.decode_seconds,
        "method": method_of(engine),
        "lossless": engine.is_lossless,
        "model": engine.target.name,
        "dtype": engine.target.number_format,
        "runtime": engine.target.runtime,
        "max_num_nodes": max(tree.num_nodes for tree in trees),
    }


def method_of(engine: Engine) -> str:
    return method_name(engine.policy, engine.heads.kind if engine.heads is not None else None)


def statistics_line(engine: Engine, result: Result) -> str:
    """The last line, for people."""
    stats = result.stats
    parts = [f"{stats.num_tokens} tokens ({result.finish_reason})"]
    if stats.tokens_per_second is not None:
        parts.append(f"{stats.tokens_per_second:.1f} tokens/s, prompt included")
    if stats.mean_acceptance_length is not None:
        parts.append(
            f"{stats.mean_acceptance_length:.2f} tokens a step (bonus token included) over"
            f" {stats.num_drafts} steps"
        )
    parts.append(method_of(engine) + ("" if engine.is_lossless else ", NOT lossless"))
    return " · ".join(parts)
