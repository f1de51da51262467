"""Workloads, methods, paired measurement, report.

Knows: engines from outside. Does not know: flags.
"""

from entmtp.bench.best_tree import TreeChoice, choose_tree, try_trees
from entmtp.bench.comparison import Comparison, MethodFigures, compare
from entmtp.bench.identity import Difference, find_differences
from entmtp.bench.methods import (
    BASELINE,
    RECIPES,
    HeadsInUse,
    heads_needed,
    make_methods,
    needs_bank,
    parse_methods,
)
from entmtp.bench.verification import Verification, summarise_differences
from entmtp.bench.workloads import load_workload
from entmtp.measure.paired import Method, Run, Task, make_tasks, measure, run_task

__all__ = [
    "BASELINE",
    "RECIPES",
    "Comparison",
    "Difference",
    "HeadsInUse",
    "Method",
    "MethodFigures",
    "Run",
    "Task",
    "TreeChoice",
    "Verification",
    "choose_tree",
    "compare",
    "find_differences",
    "heads_needed",
    "load_workload",
    "make_methods",
    "make_tasks",
    "measure",
    "needs_bank",
    "parse_methods",
    "run_task",
    "summarise_differences",
    "try_trees",
]
