"""`entmtp generate`: one answer, as it comes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from entmtp.cli.flags import AsJson
from entmtp.cli.options import (
    DraftOptions,
    TargetOptions,
    with_options,
)
from entmtp.cli.places import Place, check_overwrites, given
from entmtp.cli.plan import method_name
from entmtp.cli.processing import AnswerOptions
from entmtp.cli.session import note, open_engine
from entmtp.cli.stream import ShowDrafts, ShowText, legend, show_answer
from entmtp.data import plain_ids
from entmtp.decode import TokenLogprob
from entmtp.decode.checks import check_count
from entmtp.engine import Engine, Event, GenerationParams, Prompt, Result
from entmtp.engine.decision_log import DecisionLog
from entmtp.engine.params import MAX_SAMPLES
from entmtp.errors import BadInput

Write = Callable[[int, Event], None]
"""Write down an event of one of the answers."""


@dataclass(frozen=True)
class OutputOptions:
    """What of the answer is shown, and how."""

    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is: no chat template.")
    ] = False
    n: Annotated[
        int, typer.Option(help="Answers to the prompt, drawn by the seed and their number.")
    ] = 1
    logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="With --json: each token's log-probability and the K likeliest tokens in its"
            " place; the model's own, before temperature and penalties.",
        ),
    ] = None
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Colour what was drafted and accepted.")
    ] = False
    trace_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Write down how each step chose its tree, as it happens; see `entmtp trace show`.",
        ),
    ] = None
    as_json: AsJson = False

    def check(self, reads: Sequence[Place]) -> None:
        """Raises `BadInput` where a value is out of its range, leads to nothing, or to harm.

        Args:
            reads: what `--trace-out` must not overwrite.
        """
        check_count("n", self.n, 1, MAX_SAMPLES, f"a count from 1 to {MAX_SAMPLES}")
        if self.logprobs is not None and not self.as_json:
            raise BadInput("--logprobs are part of --json; add it, or leave them out")
        if self.trace_out is None:
            return
        if self.trace_out.is_dir():
            raise BadInput(f"--trace-out {self.trace_out} is a folder; give the name of a file")
        if not self.trace_out.absolute().parent.is_dir():
            raise BadInput(
                f"there is no folder {self.trace_out.absolute().parent} for --trace-out; make it"
                " first"
            )
        check_overwrites(given("--trace-out", self.trace_out), reads)


@with_options
def run(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    target: TargetOptions,
    drafts: DraftOptions,
    answer: AnswerOptions,
    output: OutputOptions,
) -> None:
    """Answer one prompt, with the text on standard output as it comes.

    Where the model has a chat template the prompt is put into it.
    """
    text = _read_stdin() if prompt == "-" else prompt
    if not text.strip():
        raise BadInput("the prompt is empty; give some text")
    output.check([*target.files(), *drafts.files()])
    params = replace(answer.asked(), logprobs=output.logprobs)
    engine = open_engine(target, drafts, is_recorded=output.trace_out is not None)
    request_ids = engine.add_samples(_as_asked(engine, text, output.raw), params, output.n)
    if output.show_drafts:
        legend()
    results = []
    with _log(engine, output) as write:
        for index, request_id in enumerate(request_ids):
            if output.n > 1:
                note(f"answer {index + 1} of {output.n}")
            events = _logged(engine.events(request_id), index, write)
            results.append(_show(engine, events, params, output))
    if output.as_json:
        content = report(engine, results[0]) if output.n == 1 else report_all(engine, results)
        print(json.dumps(content, allow_nan=False))


@contextmanager
def _log(engine: Engine, output: OutputOptions) -> Iterator[Write | None]:
    """What writes events down, if somebody wants them."""
    if output.trace_out is None:
        yield None
        return
    with DecisionLog(output.trace_out, _setting(engine)) as log:
        yield log.write


def _logged(events: Iterator[Event], sample: int, write: Write | None) -> Iterator[Event]:
    with closing(events):  # type: ignore[type-var]  # it is a generator
        for event in events:
            if write is not None:
                write(sample, event)
            yield event


def _show(
    engine: Engine, events: Iterator[Event], params: GenerationParams, output: OutputOptions
) -> Result:
    """Show one answer, and for people how it went."""
    tokenizer = engine.target.tokenizer
    show = (
        ShowDrafts(tokenizer, params.stop, params.min_tokens) if output.show_drafts else ShowText()
    )
    result = show_answer(events, show)
    print(flush=True)
    note(statistics_line(engine, result, with_seed=not params.sampling.is_greedy))
    return result


def _read_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not UTF-8 ({error}); convert it first") from error


def _as_asked(engine: Engine, text: str, raw: bool) -> Prompt:
    tokenizer = engine.target.tokenizer
    return plain_ids(tokenizer, text) if raw and tokenizer is not None else text


def report(engine: Engine, result: Result) -> dict[str, Any]:
    """What `--json` prints of one answer; figures that do not exist are null."""
    return _choice(engine, result) | _setting(engine)


def report_all(engine: Engine, results: Sequence[Result]) -> dict[str, Any]:
    """What `--json` prints of several answers: each under `choices`, and what they share."""
    return {
        "choices": [
            {"index": result.sample_index, **_choice(engine, result)} for result in results
        ],
        "seed": results[0].seed,
        "num_prompt_tokens": results[0].stats.num_prompt_tokens,
        "num_tokens": sum(result.stats.num_tokens for result in results),
        **_setting(engine),
    }


def _choice(engine: Engine, result: Result) -> dict[str, Any]:
    stats = result.stats
    told = {}
    if result.logprobs is not None:
        told["logprobs"] = [_logprob(engine, one) for one in result.logprobs]
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "seed": result.seed,
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
        **told,
    }


def _logprob(engine: Engine, one: TokenLogprob) -> dict[str, Any]:
    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        tokenizer = engine.target.tokenizer
        token = None if tokenizer is None else tokenizer.decode([token_id])
        return {"token_id": token_id, "token": token, "logprob": logprob}

    return {**entry(one.token_id, one.logprob), "top": [entry(*each) for each in one.top]}


def _setting(engine: Engine) -> dict[str, Any]:
    return {
        "method": method_of(engine),
        "lossless": engine.is_lossless,
        "acceptance": engine.acceptance + ("" if engine.is_lossless else " (not lossless)"),
        "model": engine.target.name,
        "dtype": engine.target.number_format,
        "runtime": engine.target.runtime,
        "max_num_nodes": max(tree.num_nodes for tree in engine.policy.trees),
    }


def method_of(engine: Engine) -> str:
    return method_name(engine.policy, engine.heads.kind if engine.heads is not None else None)


def statistics_line(engine: Engine, result: Result, *, with_seed: bool = False) -> str:
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
    if with_seed:
        parts.append(f"seed {result.seed}")
    return " · ".join(parts)
