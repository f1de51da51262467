"""The bounds against every way a short row could be run, and in their order."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from entmtp.calibrate.best import best_trees
from entmtp.calibrate.options import Options, bank_options, fastest, greedy
from entmtp.calibrate.oracle import oracle_bounds
from entmtp.calibrate.perstep import accepted_with, fit_node_values, true_places, worths
from entmtp.calibrate.sizes import size_options
from entmtp.calibrate.throughput import evaluate
from entmtp.calibrate.trace import MISS
from entmtp.calibrate.walk import accepted_at
from entmtp.trees import ROOT, Tree, chain, full
from made_traces import FLAT, RISING, by_chance, by_hand, trees_of

BANK = (ROOT, *trees_of([(0,)], [(0,), (1,), (0, 0)]), full(2, 2))


@pytest.mark.parametrize("seed", range(5))
def test_the_perfect_chooser_is_the_best_of_all_sequences_of_choices(seed: int) -> None:
    trace = by_chance(num_rows=1, length=7, num_heads=2, seed=seed)
    options = bank_options(trace, BANK, RISING)
    choices = np.array(list(product(range(len(BANK)), repeat=6)))
    choices = np.concatenate([choices, np.zeros((len(choices), 1), np.int64)], axis=1)
    best = 6 / options.run_fixed(choices).sum(axis=1).min()
    assert options.tokens_per_second(fastest(options)) == pytest.approx(best)


def test_knowing_more_is_never_slower() -> None:
    trace = by_chance()
    trees = best_trees(trace, 24)
    values = fit_node_values(trace)
    best = evaluate(trace, trees, RISING).best.tree
    bounds = oracle_bounds(trace, RISING, trees, best, trees[::3], values)
    assert bounds.fastest_static.tree == bounds.bank.best_static.tree == best
    static = bounds.bank.best_static.tokens_per_second
    order = [bounds.plain, static, bounds.bank.this_step, bounds.bank.perfect, bounds.full]
    assert order == sorted(order)
    assert static < bounds.fixed_size.tokens_per_second < bounds.perfect_size < bounds.full
    assert bounds.gain(static) == 0
    assert bounds.gain(bounds.full) == pytest.approx(bounds.full / static - 1)


@pytest.mark.parametrize("num_rows", [1, 2, 5])
@pytest.mark.parametrize("static", BANK)
def test_choosers_of_a_bank_have_its_static_tree_too(num_rows: int, static: Tree) -> None:
    """Whatever tree the bank has for that, and however few rows it was chosen on."""
    trace = by_chance(num_rows=num_rows, length=20)
    bounds = oracle_bounds(trace, RISING, BANK, static, [ROOT])
    own = evaluate(trace, [static], RISING).best.tokens_per_second
    assert bounds.bank.best_static.tokens_per_second == own
    assert own <= bounds.bank.this_step <= bounds.bank.perfect
    rates = [one.tokens_per_second for one in evaluate(trace, BANK, RISING).predictions]
    assert bounds.fastest_static.tokens_per_second == max(rates)
    assert bounds.gain(own) == 0


def test_knowing_later_steps_beats_knowing_this_one() -> None:
    options = bank_options(by_chance(num_rows=20), BANK, RISING)
    now, ever = (options.tokens_per_second(choose(options)) for choose in (greedy, fastest))
    assert ever > 1.01 * now
    for place in range(len(BANK)):
        assert now > options.tokens_per_second(np.full(len(options.accepted), place))


def test_the_full_oracle_by_hand() -> None:
    trace = by_hand([[70, 9], [9, 9], [9, 9], [MISS, MISS], [MISS, MISS]])
    none = oracle_bounds(trace, FLAT, [ROOT], ROOT, [ROOT])
    # Four tokens behind the first: three in one step, and one.
    assert none.full == pytest.approx(4 / 2)
    assert none.bank.perfect == none.plain == none.bank.best_static.tokens_per_second == 1


def test_the_perfect_size_is_the_best_of_all_sizes_at_all_depths() -> None:
    trace = by_chance(num_rows=3, length=20, num_heads=2)
    every = range(1, trace.wide_tree.num_nodes + 1)
    sized = [size_options(trace, RISING, worths(trace), every, depth).options for depth in range(3)]
    whole = Options.of(
        trace,
        np.concatenate([options.accepted for options in sized], axis=1),
        np.concatenate([options.seconds for options in sized], axis=1),
    )
    bounds = oracle_bounds(trace, RISING, [ROOT], ROOT, [ROOT])
    assert bounds.perfect_size == pytest.approx(whole.tokens_per_second(fastest(whole)))


def test_the_levels_that_a_score_needs_are_paid_for() -> None:
    trace = by_chance(num_rows=2)
    options = bank_options(trace, [ROOT, chain(1)], RISING, levels=2)
    assert options.seconds[0].tolist() == [RISING.step(1, 2), RISING.step(2, 2)]


def test_a_fixed_size_is_the_plain_reading_of_its_words() -> None:
    trace = by_chance(num_rows=2, length=15, num_heads=2)
    worth = worths(trace)
    tree = trace.wide_tree
    for num_drafts in (1, 4, 9):
        accepted = accepted_with(true_places(trace, worth, 2), num_drafts)
        for start in range(15):
            order = sorted(range(1, tree.num_nodes), key=lambda n: (-worth[start, n], n))
            chosen = Tree.from_paths([tree.paths[node] for node in order[:num_drafts]])
            future = tuple(trace.ranks[start].tolist())[: max(0, 13 - start)]
            depths = range(len(future) + 1)
            assert accepted[start] == max(d for d in depths if future[:d] in chosen.paths)


def test_every_size_of_a_static_tree_is_beaten_by_honest_heads() -> None:
    trace = by_chance(num_rows=40)
    trees = best_trees(trace, 20)
    places = true_places(trace, worths(trace), 3)
    for tree in trees[3:]:
        made = accepted_with(places, tree.num_draft_tokens).mean()
        static = evaluate(trace, [tree], FLAT).best.mean_acceptance_length - 1
        assert made > static


def test_of_what_is_hardly_seen_the_head_is_believed() -> None:
    # Three starts with a future; the head gives 0.5 to both of the wide tree's nodes.
    values = fit_node_values(by_hand([[0], [0], [9], [MISS], [MISS]]))
    # Two hits of six nodes, and one more observation that says 0.5.
    assert values.levels == ((pytest.approx((2 + 0.5) / 7),),)
    assert values.reach == (pytest.approx(2 / 3),)


def test_fitted_values_are_the_chances() -> None:
    trace = by_chance(num_rows=200)
    values = fit_node_values(trace)
    fitted, true = worths(trace, values), worths(trace)
    likely = true > 0.05
    in_wide = accepted_at(trace, trace.wide_tree)
    left = 59 - np.arange(len(in_wide)) % 60
    for depth, chance in enumerate(values.reach, start=1):
        at = (left > depth) & (in_wide >= depth - 1)
        assert chance == pytest.approx((in_wide[at] >= depth).mean(), abs=0.02)
    assert np.abs(fitted - true)[likely].mean() < 0.03
    # Heads that are too sure of themselves are seen through.
    boast = trace.log_probs / 2
    sure = type(trace)(**{**vars(trace), "log_probs": boast})
    seen_through = worths(sure, fit_node_values(sure))
    assert np.abs(seen_through - true)[likely].mean() < 0.05
    assert np.abs(worths(sure) - true)[likely].mean() > 0.15
