"""`entmtp train-heads`: heads for any supported model, by self-distillation.

The flags of the training itself are the fields of `TrainConfig`: a new field there is a new flag
here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from safetensors import SafetensorError

from entmtp.cli.bars import progress_bar
from entmtp.cli.flags import AsJson
from entmtp.cli.options import LoadOptions, SkipBadLines, line_rule, with_options
from entmtp.cli.places import Place, check_apart, check_overwrites, given
from entmtp.cli.session import note, note_skipped, open_target, warnings_as_notes
from entmtp.data import Message, OnBadLine, Prompt, load_prompts
from entmtp.data.chat import chat_text, read_chat_template
from entmtp.data.lines import check_readable
from entmtp.data.lock import alone_in
from entmtp.errors import BadInput
from entmtp.heads import StaticTree, describe_heads, locate_heads
from entmtp.target import TargetModel
from entmtp.train.answers import AnswerConfig, make_answers
from entmtp.train.config import TrainConfig
from entmtp.train.picture import draw_run
from entmtp.train.pipeline import (
    Places,
    TrainedHeads,
    prepare_features,
    rewrite_trees,
    survey_answers,
    train_from_features,
)
from entmtp.train.shards import RowRef, list_rows
from entmtp.train.trainer import StepReport


@dataclass(frozen=True)
class ModelOptions(LoadOptions):
    """Which model; in float32, for answers that do not depend on what else is being answered."""

    dtype: Annotated[
        str,
        typer.Option(
            metavar="bfloat16|float16|float32", help="The model's, for answers and features."
        ),
    ] = "float32"
    chat_template: Annotated[
        Path | None, typer.Option(help="A Jinja file, for a tokenizer that has no chat template.")
    ] = None


@dataclass(frozen=True)
class SourceOptions:
    """What is trained on: one of three."""

    prompts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|NAME",
            help="JSON lines with `prompt`, `turns`, `messages` or `conversations`, or a set:"
            " packaged, humaneval. The model itself answers the last message of the user. May be"
            " given several times.",
        ),
    ] = None
    answers: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines with answers: made by this command before, or `messages` or"
            " `conversations` whose assistant turns are trained on as they are. May be given"
            " several times.",
        ),
    ] = None
    features: Annotated[
        Path | None, typer.Option(help="Feature shards made before: skip the first two stages.")
    ] = None
    num_tokens: Annotated[int, typer.Option(help="Answer tokens to make.")] = (
        AnswerConfig.num_tokens
    )
    max_tokens: Annotated[int, typer.Option(help="Tokens of one answer at the most.")] = (
        AnswerConfig.max_tokens
    )
    skip_bad_lines: SkipBadLines = False

    def check(self) -> None:
        """Raises BadInput: nothing is given, or too much, or a file is not there."""
        given = {"--prompts": self.prompts, "--answers": self.answers, "--features": self.features}
        names = [name for name, value in given.items() if value]
        if not names:
            raise BadInput("nothing to train on; pass --prompts, --answers or --features")
        if len(names) > 1:
            raise BadInput(f"{' and '.join(names)} are given; pass one of them")
        for name, value in (("num", self.num_tokens), ("max", self.max_tokens)):
            if value < 1:
                raise BadInput(f"--{name}-tokens is {value}; expected 1 or more")
        for file in self.answers or []:
            check_readable(file, "JSON lines with answers")
        if self.features is not None and not self.features.is_dir():
            raise BadInput(f"--features {self.features}: expected a folder of feature shards")


@dataclass(frozen=True)
class PlaceOptions:
    """Where things go."""

    out: Annotated[Path, typer.Option(help="Folder for the finished heads.")]
    work: Annotated[
        Path, typer.Option(help="Folder for answers, features and checkpoints; a rerun resumes.")
    ]
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            help="Make anew what --work holds of other data or settings; keep the rest.",
        ),
    ] = False
    trees_only: Annotated[
        bool, typer.Option("--trees-only", help="Only find the static trees of --out anew.")
    ] = False

    def places(self) -> Places:
        """Raises BadInput: a file is in the way, or nothing may be written there."""
        for name, path in (("--out", self.out), ("--work", self.work)):
            for folder in (path, *path.parents):
                if folder.exists() and not folder.is_dir():
                    raise BadInput(f"{name} {path}: {folder} is a file; expected a folder")
            there = next(folder for folder in (path, *path.parents) if folder.exists())
            if not os.access(there, os.W_OK | os.X_OK):
                raise BadInput(
                    f"{name} {path}: {there} may not be written to; choose another folder"
                )
        return Places(self.work, self.out, self.restart)


@with_options
def run(
    where: PlaceOptions,
    target: ModelOptions,
    source: SourceOptions,
    config: TrainConfig,
    as_json: AsJson = False,
) -> None:
    """Train draft heads on the model's own answers, or on answers that are given.

    Three stages, each resumable: the model answers prompts; its hidden states and distributions
    are stored; heads are trained on them, judged on held-out prompts as training goes.
    """
    places = where.places()
    # What is missing is said before the model is loaded.
    if where.trees_only:
        describe_heads(where.out)
    elif config.start_from:
        locate_heads(config.start_from)
    on_bad = line_rule(source.skip_bad_lines)
    prompts: list[Prompt] = []
    if not where.trees_only:
        source.check()
        _check_overwrites(where, target, source, config)
        prompts = [p for spec in source.prompts or [] for p in load_prompts(spec, on_bad)]
        note_skipped(on_bad)
    template = target.chat_template and read_chat_template(target.chat_template)
    with warnings_as_notes(), _files_named():
        model = open_target(target)
        if template:
            _give_template(model, template)
        if where.trees_only:
            shards = source.features or where.work / "features"
            _report_trees(where.out, rewrite_trees(model, shards, where.out), as_json)
            return
        with alone_in(where.work, "train-heads run", keep_empty=where.work.exists()):
            refs = _rows(model, source, prompts, places)
            trained = _train(model, refs, places, config)
            _draw(where.work / f"run-{config.kind}", where.out)
    _report(trained, as_json)


def _check_overwrites(
    where: PlaceOptions, target: ModelOptions, source: SourceOptions, config: TrainConfig
) -> None:
    """Raises BadInput: something that is given would be overwritten."""
    folders = [
        *target.files(),
        *given("--features", source.features),
        *given("--start-from", config.start_from),
    ]
    check_apart(Place("--out", where.out), folders)
    if source.prompts:  # the answers to them are written, with a note beside them
        file = _answers_file(where.work)
        check_overwrites(
            given("--work", file, file.with_suffix(".json")),
            [*given("--prompts", *source.prompts), *given("--chat-template", target.chat_template)],
        )


def _answers_file(work: Path) -> Path:
    return work / "answers.jsonl"


@contextmanager
def _files_named() -> Iterator[None]:
    """A folder that cannot be written to, or a full disk, is the user's to put right."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        name = getattr(error, "filename", None) or "a file"
        raise BadInput(f"cannot write {name}: {reason}; see to it and run again") from error


def _give_template(model: TargetModel, template: str) -> None:
    """Raises BadInput: the template is broken, or there is no tokenizer to give it to."""
    if model.tokenizer is None:
        raise BadInput(f"{model.name} has no tokenizer; leave --chat-template out")
    model.tokenizer.chat_template = template
    chat_text(model.tokenizer, [Message("user", "?")], add_generation_prompt=True)


def _rows(
    model: TargetModel, source: SourceOptions, prompts: Sequence[Prompt], places: Places
) -> list[RowRef]:
    """Through the first two stages."""
    if source.features is not None:
        return list_rows(source.features, model.fingerprint)
    amount = AnswerConfig(num_tokens=source.num_tokens, max_tokens=source.max_tokens)
    files = source.answers or [_answer(model, prompts, places, amount)]
    on_bad = line_rule(source.skip_bad_lines)
    note(survey_answers(model, files, on_bad).summary())
    note_skipped(on_bad)
    return _make_features(model, files, places, line_rule(source.skip_bad_lines))


def _answer(
    model: TargetModel, prompts: Sequence[Prompt], places: Places, config: AnswerConfig
) -> Path:
    file = _answers_file(places.work)
    with progress_bar("answers", config.num_tokens) as update:

        def show(num_done: int) -> None:
            update(completed=num_done)

        make_answers(model, prompts, file, config, show, restart=places.restart)
    return file


def _make_features(
    model: TargetModel, answers: Sequence[Path], places: Places, on_bad: OnBadLine
) -> list[RowRef]:
    folder = places.work / "features"
    with progress_bar("features", None) as update:

        def show(num_tokens: int) -> None:
            update(advance=num_tokens)

        return prepare_features(model, answers, folder, show, on_bad=on_bad, restart=places.restart)


def _train(
    model: TargetModel, refs: Sequence[RowRef], places: Places, config: TrainConfig
) -> TrainedHeads:
    with progress_bar("training", None) as update:

        def show(report: StepReport) -> None:
            words = (
                f"loss {report.loss:.3f} · best {report.best:.3f} tokens/step ·"
                f" {report.positions_per_second:.0f} positions/s"
            )
            update(completed=report.step, total=report.num_steps, note=words)

        return train_from_features(model, refs, places, config, show)


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
        print(json.dumps({"path": str(out), "trees": entries}, allow_nan=False))


def _report(trained: TrainedHeads, as_json: bool) -> None:
    lengths = trained.result.validation["mean_acceptance_length"]
    on = "held-out prompts" if trained.provenance["num_validation_rows"] else "the rows trained on"
    print(f"heads in {trained.path}; mean acceptance length on {on}:")
    for name, value in lengths.items():
        print(f"  {name:<12} {value:.3f}")
    if as_json:
        print(json.dumps({"path": str(trained.path), **trained.provenance}, allow_nan=False))
