"""How weights and thresholds are moved."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from softprune.train.config.section import (
    FROM_LIST,
    Fraction,
    Named,
    NotNegative,
    Positive,
    PositiveFraction,
    Section,
)

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Named):
    """The optimizer, and the weight decay of each kind of parameter."""

    name: Literal["sgd", "adam", "adamw"] = Field(description="sgd (the paper), adam or adamw.")
    lr: Positive = Field(description="Highest learning rate; the schedule lowers it.")
    momentum: Beta = Field(default=0.0, description="Momentum of sgd; the paper has 0.875.")
    nesterov: bool = Field(default=False, description="Nesterov momentum of sgd.")
    betas: Annotated[tuple[Beta, Beta], FROM_LIST] = Field(
        default=(0.9, 0.999), description="Running averages of adam and adamw."
    )
    eps: Positive = Field(default=1e-8, description="Denominator of adam and adamw.")
    weight_decay: NotNegative = Field(default=0.0, description="Decay of the weights.")
    norm_decay: NotNegative = Field(
        default=0.0, description="Decay of normalisation and biases; the paper decays them like the weights."
    )
    threshold_decay: Annotated[float, Field(gt=0)] | Literal["propose"] | None = Field(
        default=None,
        description="Decay of the thresholds s, which drives sparsity; null takes weight_decay (the paper), "
        "propose computes it from propose.push.",
    )
    importance_decay: NotNegative | None = Field(
        default=None, description="Decay of the importances of units other than weights; null takes weight_decay."
    )


class ScheduleConfig(Named):
    """The learning rate over the run."""

    name: Literal["cosine", "constant", "step"] = Field(default="cosine", description="cosine, constant or step.")
    warmup_epochs: NotNegative = Field(default=0.0, description="Epochs of linear warm-up; the paper has 5.")
    per: Literal["epoch", "step"] = Field(
        default="step", description="How often the rate changes: every step, or every epoch (the paper)."
    )
    milestones: Annotated[tuple[Positive, ...], FROM_LIST] = Field(
        default=(), description="Epochs after which a step schedule lowers the rate."
    )
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.1, description="Factor of a step schedule at each milestone."
    )
    final: Fraction = Field(default=0.0, description="Fraction of lr at which a cosine schedule ends.")


class ProposeConfig(Section):
    """What is aimed at where method.s_init or optimizer.threshold_decay is "propose"."""

    push: Annotated[float, Field(gt=0, le=100)] = Field(
        default=8.2, description="How hard thresholds are driven; more is sparser (2 to 16)."
    )
    onset: PositiveFraction = Field(
        default=0.28, description="Fraction of the run after which the first weights vanish."
    )
