"""`entmtp train-heads`: heads for any supported model, by self-distillation.

The flags of the training itself are made from `TrainConfig`: a new field there is a new flag here.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from entmtp.cli.bars import progress_bar
from entmtp.cli.options import AsJson, TargetOptions
from entmtp.cli.session import note, open_target, warnings_as_notes
from entmtp.data import read_prompts
from entmtp.errors import BadInput
from entmtp.heads import StaticTree, describe_heads, locate_heads
from entmtp.target import TargetModel
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
    device: Annotated[str, typer.Option(metavar="cpu|cuda|cuda:N", help="Where to compute.")] = (
        "cpu"
    ),
    trees_only: Annotated[
        bool, typer.Option("--trees-only", help="Only find the static trees of --out anew.")
    ] = False,
    as_json: AsJson = False,
    **settings: Any,
) -> None:
    """Train draft heads on the model's own answers.

    Three stages, each resumable: the model answers prompts; its hidden states and distributions
    are stored; heads are trained on them, judged on held-out prompts as training goes.
    """
    config = TrainConfig(**settings)
    # What is missing is said before the model is loaded.
    if trees_only:
        describe_heads(out)
    elif config.start_from:
        locate_heads(config.start_from)
    if not trees_only and features is None and not answers and prompts is None:
        raise BadInput("nothing to train on; pass --prompts, --answers or --features")
    target = open_target(TargetOptions(model, dtype, device))
    shards = features or work / "features"
    with warnings_as_notes():
        if trees_only:
            _report_trees(out, rewrite_trees(target, shards, out), as_json)
            return
        if features is None:
            files = answers or [_answer(target, prompts, work, num_tokens)]
            _make_features(target, files, shards)
        trained = _train(target, shards, work, out, config)
    _draw(work / f"run-{config.kind}", out)
    _report(trained, as_json)


def _answer(target: TargetModel, prompts: Path | None, work: Path, num_tokens: int) -> Path:
    assert prompts is not None, "checked before the model was loaded"
    work.mkdir(parents=True, exist_ok=True)
    file = work / "answers.jsonl"
    config = AnswerConfig(num_tokens=num_tokens)
    with progress_bar("answers", num_tokens) as update:
        make_answers(
            target, read_prompts(prompts), file, config, lambda done: update(completed=done)
        )
    return file


def _make_features(target: TargetModel, answers: list[Path], shards: Path) -> None:
    with progress_bar("features", None) as update:
        prepare_features(target, answers, shards, lambda num_tokens: update(advance=num_tokens))


def _train(
    target: TargetModel, shards: Path, work: Path, out: Path, config: TrainConfig
) -> TrainedHeads:
    with progress_bar("training", None) as update:

        def show(report: StepReport) -> None:
            words = (
                f"loss {report.loss:.3f} · best {report.best:.3f} tokens/step ·"
                f" {report.positions_per_second:.0f} positions/s"
            )
            update(completed=report.step, total=report.num_steps, note=words)

        return train_from_features(target, shards, work, out, config, show)


def _draw(run_folder: Path, out: Path) -> None:
    picture = out / "training.png"
    try:
        draw_run(run_folder / "metrics.jsonl", picture)
    except BadInput as error:
        note(f"note: no picture: {error}")


def _report_trees(out: Path, trees: list[StaticTree], as_json: bool) -> None:
    print(f"static trees of {out} written; mean acceptance length on held-out prompts:")
    for tree, length in trees:
        print(f"  {tree.num_nodes:>3} nodes    {length:.3f}")
    if as_json:
        entries = [
            {"num_nodes": tree.num_nodes, "depth": tree.depth, "mean_acceptance_length": length}
            for tree, length in trees
        ]
        print(json.dumps({"path": str(out), "trees": entries}))


def _report(trained: TrainedHeads, as_json: bool) -> None:
    lengths = trained.result.validation["mean_acceptance_length"]
    print(f"heads in {trained.path}; mean acceptance length on held-out prompts:")
    for name, value in lengths.items():
        print(f"  {name:<12} {value:.3f}")
    if as_json:
        print(json.dumps({"path": str(trained.path), **trained.provenance}))
