"""`entmtp train-heads`: heads for any supported model, by self-distillation.

The flags of the training itself are made from `TrainConfig`: a new field there is a new flag here.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from entmtp.data import read_prompts
from entmtp.errors import BadInput
from entmtp.target import TargetModel
from entmtp.target.load import load_target
from entmtp.train.answers import AnswerConfig, make_answers
from entmtp.train.config import TrainConfig
from entmtp.train.picture import draw_run
from entmtp.train.pipeline import (
    TrainedHeads,
    prepare_features,
    rewrite_trees,
    train_from_features,
)
from entmtp.train.trainer import StepReport


def _with_training_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag for each field of `TrainConfig`."""
    types = get_type_hints(TrainConfig)
    flags = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[types[field.name], typer.Option(help=field.metadata["help"])],
        )
        for field in dataclasses.fields(TrainConfig)
    ]
    own = inspect.signature(function, eval_str=True)
    kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = own.replace(parameters=[*kept, *flags])  # type: ignore[attr-defined]
    function.__annotations__ |= {flag.name: flag.annotation for flag in flags}
    return function


@_with_training_flags
def run(
    out: Annotated[Path, typer.Option(help="Folder for the finished heads.")],
    work: Annotated[
        Path, typer.Option(help="Folder for answers, features and checkpoints; a rerun resumes.")
    ],
    model: Annotated[str, typer.Option(help="Folder, GGUF file, hub id or embedded name.")] = (
        "smollm2-135m"
    ),
    prompts: Annotated[
        Path | None, typer.Option(help="JSON lines of prompts that the model answers.")
    ] = None,
    answers: Annotated[
        list[Path] | None, typer.Option(help="Answers made before; may be given several times.")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Feature shards made before: skip the first two stages.")
    ] = None,
    num_tokens: Annotated[int, typer.Option(help="Answer tokens to make.")] = (
        AnswerConfig.num_tokens
    ),
    dtype: Annotated[str, typer.Option(help="The model's, for answers and features.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    trees_only: Annotated[
        bool, typer.Option("--trees-only", help="Only find the static trees of --out anew.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object as the last line of output.")
    ] = False,
    **settings: Any,
) -> None:
    """Train draft heads on the model's own answers.

    Three stages, each resumable: the model answers prompts; its hidden states and distributions
    are stored; heads are trained on them, judged on held-out prompts as training goes.
    """
    config = TrainConfig(**settings)
    target = load_target(model, dtype=dtype, device=device, self_check=False)
    shards = features or work / "features"
    if features is None:
        _make_features(target, _answer_files(target, prompts, answers, work, num_tokens), shards)
    if trees_only:
        rewrite_trees(target, shards, out)
        print(f"static trees of {out} written")
        return
    trained = _train(target, shards, work, out, config)
    _draw(work / f"run-{config.kind}", out)
    _report(trained, as_json)


def _answer_files(
    target: TargetModel,
    prompts: Path | None,
    answers: list[Path] | None,
    work: Path,
    num_tokens: int,
) -> list[Path]:
    if answers:
        return answers
    if prompts is None:
        raise BadInput("nothing to train on; pass --prompts, --answers or --features")
    work.mkdir(parents=True, exist_ok=True)
    file = work / "answers.jsonl"
    with _bar("answers", num_tokens) as advance_to:
        make_answers(
            target, read_prompts(prompts), file, AnswerConfig(num_tokens=num_tokens), advance_to
        )
    return [file]


def _make_features(target: TargetModel, answers: list[Path], shards: Path) -> None:
    done = 0

    with _bar("features", None) as advance_to:

        def count(num_tokens: int) -> None:
            nonlocal done
            done += num_tokens
            advance_to(done)

        prepare_features(target, answers, shards, count)


def _train(
    target: TargetModel, shards: Path, work: Path, out: Path, config: TrainConfig
) -> TrainedHeads:
    with _progress() as progress:
        task = progress.add_task("training", total=None, note="")

        def show(report: StepReport) -> None:
            words = (
                f"loss {report.loss:.3f} · best {report.best:.3f} tokens/step ·"
                f" {report.positions_per_second:.0f} positions/s"
            )
            progress.update(task, completed=report.step, total=report.num_steps, note=words)

        return train_from_features(target, shards, work, out, config, show)


def _draw(run_folder: Path, out: Path) -> None:
    picture = out / "training.png"
    try:
        draw_run(run_folder / "metrics.jsonl", picture)
    except BadInput as error:
        print(f"no picture: {error}", file=sys.stderr)


def _report(trained: TrainedHeads, as_json: bool) -> None:
    lengths = trained.result.validation["mean_acceptance_length"]
    print(f"heads in {trained.path}; mean acceptance length on held-out prompts:")
    for name, value in lengths.items():
        print(f"  {name:<12} {value:.3f}")
    if as_json:
        print(json.dumps({"path": str(trained.path), **trained.provenance}))


@contextmanager
def _progress() -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield progress


@contextmanager
def _bar(name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    with _progress() as progress:
        task = progress.add_task(name, total=total, note="")
        yield lambda done: progress.update(task, completed=done)
