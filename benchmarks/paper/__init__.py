"""The figures and tables of the STR paper, made again from its published numbers: `python -m benchmarks.paper --help`.

Claim: every printed total of the paper that follows from its layer-wise budgets is counted again, and what differs is
listed with the reason where one is known. Needs neither torch nor a network.
"""
