"""The fused operator: what the loop computes, on every instruction set, for every shape."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import as_double, problem, run, worst, worst_of_terms
from torch.autograd import forward_ad

import warm
from softprune.ops.recurrence import CURVES, fastgrnn, fastgrnn_loop
from softprune.ops.recurrence import fused as library
from softprune.ops.recurrence.fused import fused

pytestmark = pytest.mark.usefixtures("compiled")

PAPER = {"samples": 6, "steps": 128, "features": 9, "hidden": 80}
SMOOTH = ("sigmoid", "tanh")


@pytest.mark.parametrize("use", ["last", "states", "both"])
def test_it_agrees_with_the_loop_at_the_papers_size(use):
    tensors = problem(**PAPER)
    errors = worst(run(fastgrnn, tensors, use=use), run(fastgrnn_loop, as_double(tensors), use=use))
    assert max(errors.values()) < 1e-5, errors


@settings(max_examples=40, deadline=None, derandomize=True)  # at some points the recurrence magnifies rounding
@given(
    samples=st.integers(1, 11),
    steps=st.integers(1, 6),
    features=st.integers(1, 5),
    hidden=st.one_of(st.integers(1, 40), st.sampled_from([79, 80, 81, 96, 97, 112, 130])),
    start=st.booleans(),
    gate=st.sampled_from(SMOOTH),
    update=st.sampled_from(SMOOTH),
)
def test_it_agrees_with_the_loop_for_any_shape(samples, steps, features, hidden, start, gate, update):
    tensors = problem(samples=samples, steps=steps, features=features, hidden=hidden, start=start)
    curves = {"gate": gate, "update": update}
    errors = worst_of_terms(run(fastgrnn, tensors, **curves), run(fastgrnn_loop, as_double(tensors), **curves))
    assert max(errors.values()) < 2e-5, errors


@pytest.mark.parametrize("name", [name for name in CURVES if name not in SMOOTH])
def test_it_agrees_with_the_loop_for_curves_with_corners(name):
    # Two steps only: a sum within a rounding error of a corner has either slope.
    tensors = problem(samples=5, steps=2, features=3, hidden=17, start=True)
    curves = {"gate": name, "update": name}
    found, expected = run(fastgrnn, tensors, **curves), run(fastgrnn_loop, as_double(tensors), **curves)
    # What is summed over the units too may cancel almost altogether.
    sums = worst_of_terms(found, expected)
    errors = worst(found, expected) | {key: sums[key] for key in ("dzeta", "dnu")}
    assert max(errors.values()) < 1e-5, errors


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_the_non_linearities_are_accurate_over_their_whole_range(name):
    # With U = 0, W = 1, zeta = 1 and nu = 0 a first step gives (1 - z) c; with a shut gate, c.
    x = torch.cat([torch.linspace(-20, 20, 4001), torch.logspace(-30, 0, 500), -torch.logspace(-30, 0, 500)])
    zeros, one = torch.zeros(1), torch.ones(1)
    shut = {"gate_bias": torch.full((1,), -1e30), "update_bias": zeros}
    states, _ = fastgrnn(
        x.view(-1, 1, 1), w=torch.ones(1, 1), u=torch.zeros(1, 1), zeta=one, nu=zeros, gate="relu", update=name, **shut
    )
    expected = CURVES[name](x.double())
    relative = ((states.flatten() - expected) / expected).abs()[x != 0]
    assert relative.max() < 1e-6


def test_the_result_does_not_depend_on_the_number_of_threads_or_on_chance():
    tensors, before = problem(samples=70, steps=7, features=3, hidden=20), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3, 3):
            torch.set_num_threads(threads)
            found.append(run(fastgrnn, tensors))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in other)


def test_strides_do_not_matter():
    tensors = problem(samples=4, steps=5, features=3, hidden=6)
    straight = run(fastgrnn, tensors)
    turned = {**tensors, "x": tensors["x"].detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()}
    turned["u"] = tensors["u"].detach().T.contiguous().T.requires_grad_()
    assert max(worst(run(fastgrnn, turned), straight).values()) == 0


def test_nan_stays_in_its_sample():
    tensors = problem(samples=5, steps=4, features=2, hidden=3)
    x = tensors.pop("x").detach().clone()
    x[1, 2] = float("nan")
    states, _ = fastgrnn(x, **tensors)
    assert states[1, 2:].isnan().all()
    assert states[[0, 2, 3, 4]].isfinite().all()
    assert states[1, :2].isfinite().all()


@pytest.mark.parametrize("update", ["tanh", "quant_tanh"])
def test_a_gate_without_a_bound_diverges_as_in_the_loop(update):
    tensors = problem(samples=3, steps=60, features=9, hidden=80)
    x, curves = tensors.pop("x"), {"gate": "relu", "update": update}
    fused_states, loop_states = fastgrnn(x, **tensors, **curves)[0], fastgrnn_loop(x, **tensors, **curves)[0]
    ends = [int(states.isfinite().all(2).sum(1).min()) for states in (fused_states, loop_states)]
    assert 0 < ends[0] < 60
    assert abs(ends[0] - ends[1]) <= 1


def test_a_run_without_gradients_keeps_nothing_and_gives_the_same():
    tensors = problem(samples=5, steps=4, features=3, hidden=20)
    states, _ = fastgrnn(**tensors)
    with torch.no_grad():
        again, _ = fastgrnn(**tensors)
    assert torch.equal(states, again)
    given = [tensors["x"], tensors["w"], tensors["u"], torch.zeros(2, 20), torch.ones(2)]
    sizes = [fused(*given, None, 0, 1, keep=keep)[2].numel() for keep in (False, True)]
    assert sizes == [0, 5 * 4 * 32]


def test_gradients_may_be_asked_for_twice():
    tensors = problem(samples=3, steps=4, features=2, hidden=5)
    states, _ = fastgrnn(**tensors)
    first = torch.autograd.grad(states.sum(), tensors["u"], retain_graph=True)[0]
    fastgrnn(**tensors)[0].sum().backward()  # takes and gives back memory in between
    assert torch.equal(torch.autograd.grad(states.sum(), tensors["u"])[0], first)


def test_an_empty_batch_goes_through():
    tensors = problem(samples=1, steps=3, features=2, hidden=4)
    tensors["x"] = torch.zeros(0, 3, 2)
    states, last = fastgrnn(tensors.pop("x"), **tensors)
    assert states.shape == (0, 3, 4)
    assert last.shape == (0, 4)


def test_the_operator_keeps_torchs_rules():
    tensors = problem(samples=3, steps=2, features=2, hidden=3, start=True)
    biases = torch.stack([tensors["gate_bias"], tensors["update_bias"]]).detach().requires_grad_()
    scales = torch.tensor([0.7, 0.1], requires_grad=True)
    given = (tensors["x"], tensors["w"], tensors["u"], biases, scales, tensors["start"], 0, 1)
    result = torch.library.opcheck(fused, given, {"keep": True})
    assert set(result.values()) == {"SUCCESS"}


def test_a_second_derivative_is_refused():
    tensors = problem(samples=2, steps=2, features=2, hidden=2)
    states, _ = fastgrnn(tensors["x"], **{k: v for k, v in tensors.items() if k != "x"})
    (grad,) = torch.autograd.grad(states.sum(), tensors["u"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"autograd|grad"):
        grad.sum().backward()


LEVELS = """
import torch
from sequences import problem, run, worst, as_double
from softprune.ops.recurrence import fastgrnn, fastgrnn_loop
from softprune.ops.recurrence.fused import library
tensors = problem(samples=7, steps=5, features=3, hidden=83)
errors = worst(run(fastgrnn, tensors), run(fastgrnn_loop, as_double(tensors)))
print(library().level if library() else None, max(errors.values()))
"""


@pytest.mark.parametrize(("variable", "value"), [("_LEVEL", "portable"), ("_LEVEL", "avx2"), ("", "none")])
def test_other_instruction_sets_and_none_give_the_same(variable, value, tmp_path):
    script = tmp_path / "levels.py"
    script.write_text(f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\n{LEVELS}")
    done = warm.run(script, env={**os.environ, f"SOFTPRUNE_KERNELS{variable}": value})
    level, error = done.stdout.split()
    assert level in ({"none": ("None",), "avx2": ("avx2", "portable")}.get(value, (value,)))
    assert float(error) < 1e-5


def test_where_not_all_is_single_precision_the_loop_computes():
    tensors = problem(samples=2, steps=1, features=3, hidden=4)
    mixed = tensors | {name: tensors[name].detach().double() for name in ("gate_bias", "update_bias")}
    found, expected = (f(mixed["x"], **{k: v for k, v in mixed.items() if k != "x"}) for f in (fastgrnn, fastgrnn_loop))
    assert found[0].dtype == torch.float64 and torch.equal(found[0], expected[0])


@pytest.mark.slow
def test_torch_compile_keeps_it_whole():
    tensors = problem(samples=3, steps=4, features=2, hidden=5)
    compiled = torch.compile(fastgrnn, fullgraph=True)
    assert max(worst(run(compiled, tensors), run(fastgrnn, tensors)).values()) < 1e-6


def test_autocast_leaves_the_recurrence_in_float32():
    tensors = problem(samples=3, steps=4, features=2, hidden=5)
    plain = run(fastgrnn, tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run(fastgrnn, tensors)
    assert torch.equal(found["states"], plain["states"])
    assert torch.equal(found["du"], plain["du"])


def test_the_compiled_operator_is_found_and_one_of_another_version_is_refused(compiled, monkeypatch):
    assert isinstance(compiled, library.RecurrenceLibrary) and library.is_there()
    library.library.cache_clear()
    assert isinstance(library.library(), library.RecurrenceLibrary)
    monkeypatch.setattr(library, "ABI", library.ABI + 1)
    with pytest.raises(OSError, match="does not fit this package"):
        library.RecurrenceLibrary(library.RECURRENCE.file)


def test_forward_mode_takes_the_loop():
    tensors = {k: v.detach() for k, v in problem(samples=2, steps=3, features=4, hidden=5).items()}
    x, slope = tensors.pop("x"), torch.ones(2, 3, 4)
    _, expected = torch.func.jvp(lambda x: fastgrnn_loop(x, **tensors)[1], (x,), (slope,))
    with forward_ad.dual_level():
        _, last = fastgrnn(forward_ad.make_dual(x, slope), **tensors)
        torch.testing.assert_close(forward_ad.unpack_dual(last).tangent, expected)
    torch.testing.assert_close(torch.func.jvp(lambda x: fastgrnn(x, **tensors)[1], (x,), (slope,))[1], expected)


def test_scales_in_another_precision_are_read_as_what_they_are():
    tensors = {k: v.detach() for k, v in problem(samples=2, steps=3, features=4, hidden=5).items()}
    wide = tensors | {"nu": tensors["nu"][0].double()}
    torch.testing.assert_close(fastgrnn(**wide)[1], fastgrnn(**tensors)[1], check_dtype=False)


@pytest.mark.parametrize("wanted", ["x", "w"])
def test_one_gradient_alone(wanted):
    tensors = {k: v.detach() for k, v in problem(samples=2, steps=3, features=4, hidden=5).items()}
    found = []
    for function in (fastgrnn, fastgrnn_loop):
        given = tensors | {wanted: tensors[wanted].clone().requires_grad_()}
        function(**given)[1].sum().backward()
        found.append(given[wanted].grad)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
