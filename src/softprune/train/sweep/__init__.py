"""Sweeps: many runs of one configuration with some of its values searched for, by as many workers as one likes.

Only the modules behind `running` import Optuna, so that a sweep can be read and checked without it.
"""
