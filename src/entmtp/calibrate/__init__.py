"""From prompts and a machine to a bank of trees: measure, write down, compute, write down.

Knows: rank traces, latency tables, and what follows from them. Does not know: serving, training.
"""
