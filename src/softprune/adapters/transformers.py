"""Hugging Face transformers: sparsify the model of a Trainer, follow its optimizer, log and resume."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from softprune.budget.budget import Budget
from softprune.budget.units import KINDS, Units
from softprune.core.groups import learnt
from softprune.core.rule import Match, Rule
from softprune.core.sparsifier import Sparsifier
from softprune.core.sparsify import sparsify
from softprune.goals.base import Goal, Schedule
from softprune.goals.goal import Rank
from softprune.methods.base import Method

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.pytorch_utils import Conv1D
except ImportError as error:
    raise ImportError("the Trainer adapter needs transformers: pip install 'softprune[transformers]'") from error

from softprune.adapters.accelerate import attach_inner
from softprune.adapters.thresholds import refuse_decay

STATE = "softprune"  # the entry in trainer_state.json


def sparsify_trainer(
    trainer: Trainer,
    method: Method,
    *,
    goal: Goal | Rank | None = None,
    budget: Budget | None = None,
    schedule: Schedule | None = None,
    units: Units = Units.weight,
    skip: Match | Iterable[Match] = (),
    rules: Sequence[Rule] = (),
    example: Any = None,
    seed: int = 0,
    threshold_decay: float | None = None,
) -> Sparsifier:
    """Put a method on the model of a Trainer, of any subclass, that has not trained yet.

    The optimizer is the one that the training arguments ask for, with the thresholds in a group of their own.
    Gradient clipping leaves them out: it would weaken the loss against the decay that drives them. `goal`, `budget`,
    `schedule`, `units`, `skip`, `rules`, `example` and `seed` are those of `sparsify`; with an example MACs are logged
    beside the sparsity.

    Args:
        trainer: with a model and without an optimizer.
        threshold_decay: decay of s; None takes the weight decay of the training arguments.

    Returns:
        The handle: bake the model with it after training, then save it.
    """
    refuse_decay(threshold_decay, goal, budget, rules)
    make_optimizer = _optimizer_maker(trainer)
    model, args = trainer.model, trainer.args
    assert model is not None
    # GPT-2 and its relatives have a linear layer of their own, which has no units but its weights.
    has_conv1d = not KINDS[units.kind].importances and any(isinstance(m, Conv1D) for m in model.modules())
    conv1d = [Rule(_is_conv1d_weight, skip=False)] if has_conv1d else []
    sparsifier = sparsify(
        model,
        method,
        goal=goal,
        budget=budget,
        schedule=schedule,
        units=units,
        skip=skip,
        rules=[*conv1d, *rules],
        example=example,
        seed=seed,
    )
    try:
        groups = sparsifier.param_groups(weight_decay=args.weight_decay, threshold_decay=threshold_decay)
    except ValueError:
        sparsifier.remove()
        raise
    for target in sparsifier.targets:
        for module, tensor in target.sites:
            # So that `save_pretrained` writes tensors of several names (tied weights, a shared threshold) once.
            module.parametrizations[tensor]._tied_weights_keys = {".+": ".+"}  # type: ignore[index,union-attr]
    trainer.optimizer = make_optimizer(groups)
    _clip_weights_only(trainer, sparsifier)
    # Before all others, so that what it adds to the logs reaches them.
    trainer.callback_handler.callbacks.insert(0, SoftpruneCallback(sparsifier))
    return sparsifier


class SoftpruneCallback(TrainerCallback):
    """Follows the optimizer of a Trainer; for one that you made yourself, from `param_groups` of the sparsifier."""

    def __init__(self, sparsifier: Sparsifier) -> None:
        self.sparsifier = sparsifier

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        sparsifier = self.sparsifier
        if not sparsifier.managed:
            return
        if kwargs["model"] is not sparsifier.model:
            raise ValueError("this Trainer trains another model than the one that was sparsified (model_init?)")
        saved: Any = state.stateful_callbacks.get(STATE) if isinstance(state.stateful_callbacks, dict) else None
        if saved is None:
            sparsifier.step = state.global_step
        elif saved.get("frozen") not in (None, "thresholds", sparsifier.frozen):
            raise ValueError(
                f"the checkpoint was saved after freeze({saved['frozen']!r}), which changes what is in it: call that "
                "before train(), too"
            )
        else:
            sparsifier.load_state_dict(saved)
        sparsifier.detach()  # from an earlier call of train()
        attach_inner(sparsifier, [kwargs["optimizer"]], total_steps=state.max_steps, scheduler=kwargs["lr_scheduler"])

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.sparsifier.managed:
            callbacks: Any = state.stateful_callbacks
            callbacks[STATE] = self.sparsifier.state_dict()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.sparsifier.managed:
            budget = self.sparsifier.measure()
            found = {"sparsity": budget.overall}
            if self.sparsifier.profile.counted:
                found["macs"] = float(budget.macs())
            kwargs["logs"].update(found)
            state.log_history[-1].update(found)


def _optimizer_maker(trainer: Trainer) -> partial[Optimizer]:
    if trainer.model_init is not None or trainer.optimizer is not None:
        what = "makes its model in train() (model_init)" if trainer.model_init is not None else "has an optimizer"
        raise ValueError(
            f"this Trainer {what}: sparsify the model yourself, build the optimizer from param_groups(), and pass "
            "model=, optimizers= and callbacks=[SoftpruneCallback(sparsifier)] to the Trainer"
        )
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise ValueError("FSDP and DeepSpeed take apart the parameters that thresholds act on: use DDP (torchrun)")
    kind, kwargs = trainer.optimizer_cls_and_kwargs or trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
    own_groups = {"params", "model", "optimizer_dict"} & kwargs.keys()
    if own_groups or not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        raise ValueError(f"optim={trainer.args.optim!s} forms its own parameter groups: use adamw_torch or sgd")
    return partial(kind, **kwargs)


def _is_conv1d_weight(name: str, module: nn.Module) -> bool:
    return isinstance(module, Conv1D) and name.endswith(".weight")


def _clip_weights_only(trainer: Trainer, sparsifier: Sparsifier) -> None:
    clip: Any = trainer.accelerator.clip_grad_norm_
    thresholds = {id(s) for s in learnt(sparsifier.targets)}

    def clip_weights(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        return clip([p for p in parameters if id(p) not in thresholds], *args, **kwargs)

    trainer.accelerator.clip_grad_norm_ = clip_weights  # type: ignore[method-assign]
