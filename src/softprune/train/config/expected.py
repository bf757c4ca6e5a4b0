"""What a run should give, according to whom."""

from __future__ import annotations

from pydantic import Field

from softprune.train.config.section import Count, Fraction, Section


class ExpectedConfig(Section):
    """The result to compare with; says nothing about how to train."""

    accuracy: Fraction | None = Field(default=None, description="Top-1 test accuracy, as a fraction.")
    sparsity: Fraction | None = Field(default=None, description="Fraction of zeros among the managed weights.")
    params: Count | None = Field(default=None, description="Weights that are not zero.")
    flops: Count | None = Field(default=None, description="Multiply-adds that are left.")
    source: str = Field(default="", description="Who measured it, such as a table of the paper.")
    note: str = Field(default="", description="What to mind.")
    cost: str = Field(default="", description="Roughly what the run takes.")
