"""Tuning."""

from __future__ import annotations

from softprune.deploy.runtime.library import Library
from softprune.deploy.runtime.program import Plan
from softprune.deploy.runtime.spx import Model


def tune_plan(plan: Plan, model: Model, library: Library, *, batch: int, threads: int) -> None:
    """Nothing yet."""
