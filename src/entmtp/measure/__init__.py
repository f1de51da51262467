"""Speed by the wall clock: paired runs of one prompt by several methods, and how sure ratios are.

Knows: engines from outside, numbers. Does not know: which methods there are, what comes of them.
"""
