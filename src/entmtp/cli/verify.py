"""`entmtp verify`: plain against speculative decoding on the user's own model and prompts."""

from __future__ import annotations

import json

import typer
from rich.console import Console

from entmtp.bench import (
    BASELINE,
    Comparison,
    Method,
    Verification,
    make_tasks,
    summarise_differences,
)
from entmtp.bench.report import describe_difference, print_verification
from entmtp.cli.flags import AsJson
from entmtp.cli.methods import compare_visibly
from entmtp.cli.options import (
    DraftOptions,
    SamplingOptions,
    TargetOptions,
    with_options,
)
from entmtp.cli.plan import method_name, plan_drafts
from entmtp.cli.processing import ProcessingOptions
from entmtp.cli.session import note, open_engine
from entmtp.cli.workload import WorkloadOptions
from entmtp.engine import Engine, GenerationParams
from entmtp.errors import BadInput

NOT_IDENTICAL = 1


@with_options
def run(
    target: TargetOptions,
    drafts: DraftOptions,
    workload: WorkloadOptions,
    sampling: SamplingOptions,
    processing: ProcessingOptions,
    as_json: AsJson = False,
) -> None:
    """Answer prompts plainly and with drafts, and compare every token.

    In float32 no token may differ. In 16 bits one row and many rows round differently and near-ties
    may fall either way: at each prompt's first difference the gap between the two tokens, in
    float32, is divided by the rounding error there. Up to 2 this is rounding; above it is an error.

    Exit codes: 0 identical, or different by rounding alone; 1 a difference that rounding does not
    explain (in float32 and int8: any); 2 wrong use or bad input; 130 interrupted.
    """
    _check(drafts, target, workload)
    prompts = workload.load()
    asked = processing.processed(sampling.sampling())
    params = GenerationParams(workload.max_tokens, asked, banned=tuple(processing.ban or ()))
    drafted = open_engine(target, drafts)
    assert drafted.heads is not None, "a policy that drafts has heads"
    if not drafted.is_lossless:
        note(
            f"note: {drafted.acceptance} acceptance is NOT lossless: above temperature 0 its"
            " answers differ from the model's own on purpose"
        )
    name = method_name(drafted.policy, drafted.heads.kind)
    methods = [Method(BASELINE, Engine(drafted.target)), Method(name, drafted)]
    comparison = compare_visibly(methods, make_tasks(drafted, prompts), params)
    verification = summarise_differences(comparison, name)
    print_verification(verification, comparison, Console())
    if as_json:
        print(json.dumps(_report(verification, comparison), allow_nan=False), flush=True)
    if not verification.passed:
        note(f"entmtp: {describe_difference(verification.differences[0])}")
        raise typer.Exit(NOT_IDENTICAL)


def _check(drafts: DraftOptions, target: TargetOptions, workload: WorkloadOptions) -> None:
    """Refuse what would verify nothing, before anything is loaded."""
    policy = plan_drafts(drafts, target.model).policy
    if not any(tree.depth for tree in policy.trees):
        raise BadInput(
            f"policy {policy.name} never drafts, so there is nothing to verify; pass --heads, and"
            " a tree of more than the root"
        )
    if workload.max_tokens == 0:
        raise BadInput("answers of 0 tokens leave nothing to verify; give --max-tokens 1 or more")


def _report(verification: Verification, comparison: Comparison) -> dict[str, object]:
    """The verdict first, then all that it rests on, ids included."""
    return verification.to_json() | comparison.to_json()
