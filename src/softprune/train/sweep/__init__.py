"""Sweeps: many runs of one configuration with some of its values searched for, by as many workers as one likes.

A sweep can be read and checked without Optuna: only `folder`, `study` and `worker` import it.
"""
