"""Whether a run can take what a sweep chooses: asked before the first trial, not found out by the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from softprune.train.config import ConfigError, Problem, RunConfig
from softprune.train.config.keys import field_at
from softprune.train.config.method import method_defaults
from softprune.train.overrides import apply_overrides
from softprune.train.sweep.config import SweepConfig
from softprune.train.sweep.space import Dimension, Range

# A trial's name says which trial it is, and the version of the format is no matter of choice.
_NOT_FREE = ("name", "version")


def check_keys(config: SweepConfig, base: RunConfig) -> list[Problem]:
    """Keys of `changes` and `search` that do not exist, with the nearest, or that contradict each other."""
    problems = []
    plain = base.model_dump(mode="json")
    for section, keys in (("changes", config.changes), ("search", config.search)):
        for key in keys:
            try:
                apply_overrides(plain, [f"{key}=null"])
            except ConfigError as error:
                problems += [problem.below(section) for problem in error.problems]
            if key in _NOT_FREE:
                problems.append(Problem(f"{section}.{key}", "cannot be chosen: every trial has its own"))
    for key in config.search:
        for section, keys in (("changes", config.changes), ("search", config.search)):
            for other in keys:
                if other.startswith(f"{key}.") or (key == other and section == "changes"):
                    problems.append(Problem(f"search.{key}", f"would overwrite {section}.{other}; keep one of the two"))
    return problems


def whole_keys(search: Mapping[str, Dimension], base: RunConfig) -> frozenset[str]:
    """The searched keys that take whole numbers only."""
    return frozenset(key for key, dimension in search.items() if _takes_whole_numbers(key, dimension, base))


def check_points(
    run_config: Callable[[Mapping[str, Any]], RunConfig], points: Iterable[Mapping[str, Any]], config: SweepConfig
) -> list[Problem]:
    """What a run refuses of these points; each problem once, with the first point that has it."""
    found: dict[Problem, int] = {}
    for point in points:
        for problem in _refusals(run_config, point, config):
            found[problem] = found.get(problem, 0) + 1
    return [Problem(p.path, f"{p.message} (in {n} combinations)" if n > 1 else p.message) for p, n in found.items()]


def _refusals(
    run_config: Callable[[Mapping[str, Any]], RunConfig], point: Mapping[str, Any], config: SweepConfig
) -> list[Problem]:
    try:
        made = run_config(point)
    except ConfigError as error:
        return [_placed(problem, point) for problem in error.problems]
    costs = [name for name in config.objectives if name != "accuracy"]
    if made.method is None and costs:
        return [
            Problem("objectives", f"a dense run has no {' and no '.join(costs)}; set method, or keep accuracy alone")
        ]
    return []


def _placed(problem: Problem, point: Mapping[str, Any]) -> Problem:
    """The problem below the searched key that causes it; else with those searched keys it may come from."""
    for key in point:
        if problem.path == key or problem.path.startswith(f"{key}."):
            return problem.below("search")
    section = problem.path.partition(".")[0]
    near = [key for key in point if key.partition(".")[0] == section] or list(point)
    return Problem("search", f"{' and '.join(near)} can be chosen so that {problem}")


def _takes_whole_numbers(key: str, dimension: Dimension, base: RunConfig) -> bool:
    path = key.split(".")
    if path[0] == "method" and len(path) == 2 and base.method is not None:
        default = method_defaults(base.method.name).get(path[1])
        return isinstance(default, int) and not isinstance(default, bool)
    _, field = field_at(RunConfig, path)
    if field is None or path[:2] == ["model", "args"]:
        # Nobody says what it takes, so as it is written.
        numbers = dimension.model_dump(exclude={"log"}).values() if isinstance(dimension, Range) else ()
        return any(numbers) and not any(isinstance(number, float) for number in numbers)
    kinds = _kinds(field.annotation)
    return int in kinds and float not in kinds


def _kinds(annotation: Any) -> set[Any]:
    """The types that a field may have."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return {kind for part in get_args(annotation) for kind in _kinds(part)}
    return {annotation}
