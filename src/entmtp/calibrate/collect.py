"""From prompts to a rank trace: answers, ranks, a wide draft; killed anywhere, it goes on.

Knows: the order of the stages and the files between them. Does not know: how a stage is computed,
progress bars.

The work lies in a folder beside the output (`work_folder.py`), one file for each group of rows and
stage, each written whole: `answers-…` (of the target alone), `ranks-…` and `draft-…` (of the heads,
by their fingerprint). A run that finds some of its files goes on behind them, and ends with the
bytes of an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from entmtp.calibrate.answers import AnswerConfig, Group, answer_group, plan_groups, question_key
from entmtp.calibrate.done_work import group_of, log_probs_of, ranks_of
from entmtp.calibrate.files import finished
from entmtp.calibrate.origin import Origin
from entmtp.calibrate.ranks import see, true_ranks, wide_log_probs
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.trace_file import StoredTrace, write_trace
from entmtp.calibrate.work_folder import at_work, discard, take_up
from entmtp.data import Prompt
from entmtp.engine.questions import Question
from entmtp.heads import DraftHeads, check_tree
from entmtp.heads.fingerprint import heads_fingerprint
from entmtp.target import TargetModel
from entmtp.trees import Tree, chain
from entmtp.trees.replay import Ranks, best_static_tree

SCHEMA_VERSION = 1
"""Of the files in the work folder."""
FEW_PROMPTS = 20
"""Below this, a trace is made with a warning."""
WIDE_NODES = 64
"""Of the paths that are counted where no wide tree is given, the root included."""

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how many of its rows are done, and how many there are."""


@dataclass(frozen=True)
class TraceConfig:
    """What is recorded, and where."""

    answers: AnswerConfig = field(default_factory=AnswerConfig)
    wide_tree: Tree | None = None
    """All that a tree made for a step may consist of; by default the most frequent true paths and
    the greedy one"""
    work: Path | None = None
    """Folder of finished groups, kept for other heads of the same target; by default one beside
    the output, which goes when that is there"""
    restart: bool = False
    """Work of other prompts or settings is made anew instead of refused"""


def collect_trace(
    target: TargetModel,
    heads: DraftHeads,
    prompts: Sequence[Prompt],
    out: Path,
    config: TraceConfig | None = None,
    progress: Progress = lambda stage, num_done, num_all: None,
) -> StoredTrace:
    """Measure a rank trace and write it to `out`, whole or not at all.

    Raises:
        BadInput: no prompt can be answered, or another calibration is at work in the folder.
        TreeError: the heads cannot fill the wide tree.
        ArtefactError: the work folder is of other prompts or settings, or a file in it is broken.
    """
    config = config or TraceConfig()
    with at_work(config.work, out) as work:
        stored = collect_in(work, target, heads, prompts, out, config, progress)
        if config.work is None:
            discard(work)
    return stored


def collect_in(
    work: Path,
    target: TargetModel,
    heads: DraftHeads,
    prompts: Sequence[Prompt],
    out: Path,
    config: TraceConfig,
    progress: Progress,
) -> StoredTrace:
    """The same for who is at work in a folder already; finished work stays there.

    Raises:
        As `collect_trace`.
    """
    if config.wide_tree is not None:
        check_tree(heads, config.wide_tree)
    plan = plan_groups(target, prompts, config.answers)
    num_rows = sum(map(len, plan))
    if num_rows < FEW_PROMPTS:
        warnings.warn(
            f"only {num_rows} prompts: what is computed from them is uncertain; {FEW_PROMPTS} or"
            " more are better",
            stacklevel=3,
        )
    run = _Run(target, heads, plan, config, work, progress)
    answers = run.take_up()
    with _threads(config.answers.num_threads):
        trace = run.measure()
    stored = StoredTrace(trace, Origin.of(target, heads), answers)
    write_trace(out, stored)
    return stored


def wide_tree(ranks: Ranks) -> Tree:  # [N, K]
    """The most frequent true paths, and the greedy path, which scores are read from."""
    best, greedy = best_static_tree(ranks, WIDE_NODES), chain(ranks.shape[1])
    return Tree.from_paths({*best.paths, *greedy.paths})


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """PyTorch's number of threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class _Run:
    """One run: what it is about, and the folder of what is done of it."""

    target: TargetModel
    heads: DraftHeads
    plan: Sequence[Sequence[Question]]
    config: TraceConfig
    folder: Path
    progress: Progress

    @property
    def num_rows(self) -> int:
        return sum(map(len, self.plan))

    def take_up(self) -> dict[str, Any]:
        """Leave in the folder what can be gone on with; what the answers are made with.

        Raises:
            ArtefactError: they are made with something else, and are not to be made anew.
        """
        keys = [[question_key(question), question.kind] for g in self.plan for question in g]
        answers = {
            **asdict(self.config.answers),
            "num_prompts": len(keys),
            "prompts": hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:16],
        }
        origin = Origin.of(self.target, self.heads)._asdict()
        del origin["heads"]  # they have nothing to do with answers
        made_with = {"schema_version": SCHEMA_VERSION, **origin, **answers}
        take_up(self.folder, made_with, restart=self.config.restart)
        return answers

    def measure(self) -> RankTrace:
        """All stages, as far as they are not done; one group's hidden states at a time."""
        name = heads_fingerprint(self.heads)
        groups, ranks = [], []
        for number in range(len(self.plan)):
            group = self._group(number)
            path = self.folder / f"ranks-{name}-{number:05d}.safetensors"
            found = finished(path, partial(self._ranks, group))
            ranks.append(ranks_of(path, found, len(group.root), self.heads.num_draft_heads))
            groups.append(group._replace(hidden=torch.empty(0)))
        tree = self.config.wide_tree or wide_tree(torch.cat(ranks).numpy())
        name = f"{name}-{hashlib.sha256(repr(tree.paths).encode()).hexdigest()[:8]}"
        drafts = []
        for number in range(len(self.plan)):
            path = self.folder / f"draft-{name}-{number:05d}.safetensors"
            found = finished(path, partial(self._draft, number, tree))
            drafts.append(log_probs_of(path, found, len(ranks[number]), tree.num_nodes))
            self.progress("draft", sum(map(len, self.plan[: number + 1])), self.num_rows)
        return self._trace(groups, torch.cat(ranks), tree, torch.cat(drafts))

    def _group(self, number: int) -> Group:
        """One group of answered rows."""
        done = sum(map(len, self.plan[:number]))

        def tell(num_answers: int) -> None:
            self.progress("answers", done + num_answers, self.num_rows)

        def make() -> dict[str, torch.Tensor]:
            questions = self.plan[number]
            return answer_group(self.target, questions, self.config.answers, tell)._asdict()

        path = self.folder / f"answers-{number:05d}.safetensors"
        group = group_of(path, finished(path, make), self.plan[number], self.target)
        tell(len(self.plan[number]))
        return group

    def _ranks(self, group: Group) -> dict[str, torch.Tensor]:
        return {"ranks": true_ranks(self.heads, see(self.heads, group))}

    def _draft(self, number: int, tree: Tree) -> dict[str, torch.Tensor]:
        starts = see(self.heads, self._group(number))
        return {"log_probs": wide_log_probs(self.heads, starts, tree)}

    def _trace(
        self, groups: Sequence[Group], ranks: torch.Tensor, tree: Tree, log_probs: torch.Tensor
    ) -> RankTrace:
        root = torch.cat([group.root for group in groups]).numpy()
        lengths = torch.cat([group.answer_lengths for group in groups])
        return RankTrace(
            ranks=ranks.numpy(),
            wide_tree=tree,
            log_probs=log_probs.numpy(),
            root_probability=root[:, 0],
            root_entropy=root[:, 1],
            row_starts=torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).numpy(),
            prompt_lengths=torch.cat([group.prompt_lengths for group in groups]).numpy(),
            kinds=tuple(question.kind for group in self.plan for question in group),
        )
