"""Flags that several verbs share, in groups.

A group is a frozen dataclass whose fields are flags; `with_options` turns a verb's parameters of
such types into the flags. Defaults are those of the room that a flag belongs to.

Knows: spellings. Does not know: what flags mean together (`plan`), loaded models or heads.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from entmtp.cli.places import Place, given, tree_files
from entmtp.data import OnBadLine, SkippedLines, refuse_line
from entmtp.decode import Sampling
from entmtp.engine import GenerationParams
from entmtp.target.embedded import EMBEDDED

DEFAULT_MODEL = next(iter(EMBEDDED))
DEFAULT_HEADS = "hydra"

SkipBadLines = Annotated[
    bool,
    typer.Option("--skip-bad-lines", help="Leave out lines that cannot be read, and say how many."),
]


def line_rule(skip_bad_lines: bool) -> OnBadLine:
    """What `--skip-bad-lines` means to a reader; `note_skipped` says afterwards what it did."""
    return SkippedLines() if skip_bad_lines else refuse_line


@dataclass(frozen=True)
class LoadOptions:
    """Which model, and how it is held in memory."""

    model: Annotated[
        str,
        typer.Option(
            metavar="PATH|NAME",
            help=f"{DEFAULT_MODEL} (embedded), a checkpoint folder, a .gguf file or a hub id.",
        ),
    ] = DEFAULT_MODEL
    dtype: Annotated[
        str,
        typer.Option(
            metavar="auto|bfloat16|float16|float32|int8",
            help="Number format. In float32, and in int8 on native and openvino, speculative output"
            " equals plain output to the token; in 16 bits up to rounding. int8 (native, openvino,"
            " compiled) is another model, with an output of its own. auto: int8 there, else"
            " bfloat16.",
        ),
    ] = "auto"
    device: Annotated[str, typer.Option(metavar="cpu|cuda|cuda:N", help="Where to compute.")] = (
        "cpu"
    )

    def files(self) -> list[Place]:
        """What is read."""
        return given("--model", self.model)


@dataclass(frozen=True)
class TargetOptions(LoadOptions):
    """And what computes it, for verbs that generate."""

    runtime: Annotated[
        str,
        typer.Option(
            metavar="auto|eager|native|compiled|openvino|graphs",
            envvar="ENTMTP_RUNTIME",
            help="What computes. eager: PyTorch; native: kernels of our own for x86 CPUs with"
            " AVX-512, and compiled: PyTorch's layers as machine code for CPUs, both need a C++"
            " compiler once; openvino: a graph for CPUs, needs the extra of that name; graphs: CUDA"
            " graphs; auto: the fastest that is ready.",
        ),
    ] = "auto"


@dataclass(frozen=True)
class DraftOptions:
    """What drafts, and which tree it fills."""

    heads: Annotated[
        str | None,
        typer.Option(
            metavar="medusa|hydra|PATH",
            help="Draft heads: shipped ones by name, a folder or a file, published ones too."
            f" The embedded model has {DEFAULT_HEADS} where none are given.",
        ),
    ] = None
    policy: Annotated[
        Literal["plain", "static", "ladder", "hysteresis", "throughput", "per-step", "random"]
        | None,
        typer.Option(
            help="Which tree next. plain: no drafts; static: always --tree; of a --bank: ladder"
            " and hysteresis as the paper has them, throughput (the most of each step's time),"
            " per-step (a tree made for the step), static (its best tree); random: another one"
            " each step (for tests). What a bank recommends, static with heads alone, else plain."
        ),
    ] = None
    bank: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|code|maths|chat",
            help="Bank of trees for this model, heads and machine (calibrate makes it), or for"
            " a kind of text, which comes with shipped heads. Theirs for all kinds is used"
            " without being named.",
        ),
    ] = None
    as_published: Annotated[
        bool,
        typer.Option(
            "--as-published",
            help="Ladder and hysteresis with the faults of the paper's code, to compare with.",
        ),
    ] = False
    no_adapt: Annotated[
        bool,
        typer.Option(
            "--no-adapt",
            help="Throughput and per-step: keep to what was calibrated, whatever comes of it.",
        ),
    ] = False
    tree: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Tree of the static policy: medusa-63, chain-K, full-WxD or a file (tree show);"
            " the heads' own tree of about 16 nodes where none is given.",
        ),
    ] = None
    acceptance: Annotated[
        Literal["exact", "typical"],
        typer.Option(
            help="exact keeps the model's own output; typical is NOT lossless: it also keeps drafts"
            " that the model merely finds likely (for comparison with published figures)."
        ),
    ] = "exact"
    allow_plain: Annotated[
        bool,
        typer.Option(
            "--allow-plain",
            help="Do not refuse a model that cannot verify trees; decode it plainly, without"
            " drafts.",
        ),
    ] = False

    def files(self) -> list[Place]:
        """What is read."""
        return [
            *given("--heads", self.heads),
            *given("--bank", self.bank),
            *tree_files("--tree", self.tree),
        ]


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen."""

    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = (
        Sampling.temperature
    )
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest tokens; 0: from all.")] = (
        Sampling.top_k
    )
    top_p: Annotated[
        float, typer.Option(help="Draw from the likeliest tokens up to this mass; 1: from all.")
    ] = Sampling.top_p
    seed: Annotated[
        int | None,
        typer.Option(
            help="Same seed, same text, with or without drafts. Where none is given, generate and"
            " chat draw one and tell it; demo takes 0."
        ),
    ] = Sampling.seed

    def sampling(self, default_seed: int | None = None) -> Sampling:
        seed = default_seed if self.seed is None else self.seed
        return Sampling(self.temperature, self.top_k, self.top_p, seed)


@dataclass(frozen=True)
class LimitOptions:
    """Where an answer ends."""

    max_tokens: Annotated[
        int,
        typer.Option(
            help="Tokens to generate at the most, and never past the model's context. 0 generates"
            " nothing and runs no step."
        ),
    ] = 512
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="End the text in front of this string; may be given several times.",
        ),
    ] = None

    stop_token_id: Annotated[
        list[int] | None,
        typer.Option(
            metavar="ID", help="End the text with this token; may be given several times."
        ),
    ] = None
    min_tokens: Annotated[
        int,
        typer.Option(help="Tokens to generate at the least: no end and no stop string before."),
    ] = GenerationParams.min_tokens
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos", help="Go on behind the model's own end-of-sequence tokens."),
    ] = GenerationParams.ignore_eos

    def params(self, sampling: Sampling) -> GenerationParams:
        return GenerationParams(
            self.max_tokens,
            sampling,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_id or ()),
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
        )


def with_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Make flags of each parameter of `verb` whose type is a group of flags."""
    hints = get_type_hints(verb, include_extras=True)
    hints.pop("return", None)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(verb).parameters.items():
        if name in groups:
            parameters += _flags(groups[name])
        else:
            parameters.append(_keyword(name, hints[name], parameter.default))

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        verb(**given)

    del run.__wrapped__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _flags(group: Any) -> list[inspect.Parameter]:
    """A field may carry its help in its metadata, where its room knows no command line."""
    hints = get_type_hints(group, include_extras=True)
    flags = []
    for field in fields(group):
        hint: Any = hints[field.name]
        if help_text := field.metadata.get("help"):
            hint = Annotated[hint, typer.Option(help=help_text)]
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        flags.append(_keyword(field.name, hint, default))
    return flags


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
