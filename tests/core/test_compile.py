"""torch.compile and torch.export on managed and baked models."""

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from torch.optim import SGD

from softprune.core.sparsify import sparsify
from softprune.methods import STR
from softprune.ops import Exp, straight_through

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _net():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 16, 4),
    )


def _batches(count=6):
    generator = torch.Generator().manual_seed(3)
    images = [torch.randn(8, 1, 8, 8, generator=generator) for _ in range(count)]
    return [(x, torch.randint(4, (8,), generator=generator)) for x in images]


def _train(model, run, method, batches):
    sparsifier = sparsify(model, method)
    groups = sparsifier.param_groups(weight_decay=1e-3, threshold_decay=0.1)
    optimizer = sparsifier.attach(SGD(groups, lr=0.1, momentum=0.9), total_steps=len(batches))
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(run(x), y).backward()
        optimizer.step()
    return sparsifier


def _assert_same_training(compiled, eager, ours, reference):
    assert ours.step == reference.step == len(_batches())
    for (name, a), b in zip(compiled.state_dict().items(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    density = reference.measure().densities["3.weight"]
    assert 0 < density < 1
    assert ours.measure().densities["3.weight"] == pytest.approx(density, abs=2 / 324)


@pytest.mark.parametrize(
    "method",
    [
        STR(s_init=-4.0),
        STR(s_init=-4.0, g=Exp()),
        STR(s_init=-4.0, granularity="filter"),
        STR(s_init=-4.0, granularity="weight"),
        STR(s_init=-4.0, granularity="global"),
        STR(s_init=-4.0, backward=straight_through),
        STR(s_init=-4.0, min_keep=8),
    ],
    ids=["sigmoid", "exp", "filter", "weight", "global", "straight-through", "min_keep"],
)
def test_a_compiled_model_trains_like_the_eager_one(method):
    eager, compiled = _net(), _net()
    compiled.load_state_dict(eager.state_dict())
    run = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    ours = _train(compiled, run, method, _batches())
    reference = _train(eager, eager, method, _batches())
    _assert_same_training(compiled, eager, ours, reference)


@pytest.mark.slow
def test_the_default_compiler_trains_like_eager():
    eager, compiled = _net(), _net()
    compiled.load_state_dict(eager.state_dict())
    run = torch.compile(compiled, fullgraph=True)
    ours = _train(compiled, run, STR(s_init=-4.0), _batches())
    reference = _train(eager, eager, STR(s_init=-4.0), _batches())
    _assert_same_training(compiled, eager, ours, reference)


@pytest.mark.filterwarnings("ignore::softprune.core.collapse.CollapseWarning")
def test_nothing_is_compiled_again_while_thresholds_move():
    """From a threshold of exactly 0, over the first zeros, to a dead network: one graph."""
    model = _net()
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(model, backend=counter, fullgraph=True)
    sparsifier = sparsify(model, STR(s_init=-100.0))
    groups = sparsifier.param_groups(weight_decay=1e-3, threshold_decay=1.0)
    optimizer = sparsifier.attach(SGD(groups, lr=0.2), total_steps=40)
    densities = []
    for x, y in _batches(40):
        optimizer.zero_grad()
        F.cross_entropy(run(x), y).backward()
        optimizer.step()
        densities.append(sparsifier.measure().densities["3.weight"])
    assert counter.frame_count == 1
    assert densities[0] == 1.0
    assert densities[-1] < 0.1


def test_a_compiled_optimizer_step_is_counted_and_compiled_once():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    sparsifier = sparsify(model, STR(s_init=-4.0, min_keep=2))
    groups = sparsifier.param_groups(weight_decay=1e-3, threshold_decay=0.1)
    optimizer = sparsifier.attach(SGD(groups, lr=torch.tensor(0.1), momentum=0.9), total_steps=20)
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(backend=counter)
    def step():
        optimizer.step()

    graphs = []
    for n in range(1, 21):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        step()
        graphs.append(counter.frame_count)
        assert sparsifier.step == n
    # The first step makes the momentum buffers, the second finds them; nothing is new after that.
    assert graphs[2:] == [graphs[2]] * 18
    assert model[0].parametrizations.weight[0].s.item() > -4.0


def test_a_model_that_was_compiled_and_run_can_be_sparsified():
    eager, model = _net(), _net()
    model.load_state_dict(eager.state_dict())
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    x, _ = _batches(1)[0]
    torch.testing.assert_close(compiled.eval()(x), eager.eval()(x))
    before = counter.frame_count
    sparsifier = sparsify(compiled, STR(s_init=-2.0))
    sparsify(eager, STR(s_init=-2.0))
    assert sparsifier.model is model
    assert not any(name.startswith("_orig_mod") for name in sparsifier.measure().densities)
    torch.testing.assert_close(compiled(x), eager(x))
    assert counter.frame_count == before + 1
    assert sparsifier.measure().densities["3.weight"] < 0.9


def test_a_model_compiled_in_place_can_be_sparsified():
    class Net(nn.Module):  # torch refuses to compile its own Sequential in place
        def __init__(self):
            super().__init__()
            self.layers = _net()

        def forward(self, x):
            return self.layers(x)

    model, plain = Net().eval(), Net().eval()
    model.compile(backend="aot_eager", fullgraph=True)
    x, _ = _batches(1)[0]
    dense = model(x)
    sparsifier = sparsify(model, STR(s_init=-2.0))
    sparse = model(x)
    sparsifier.bake()
    baked = model(x)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(sparse, plain(x))
    torch.testing.assert_close(baked, plain(x))
    assert not torch.allclose(sparse, dense)


def test_equal_layers_share_one_class_and_one_graph():
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))

    model = Stack()
    sparsify(model, STR(s_init=-2.0))
    assert len({type(layer) for layer in model.layers}) == 1
    counter = CompileCounter()
    x = torch.randn(2, 8)
    for layer in model.layers:
        layer.compile(backend=counter, fullgraph=True)
        x = layer(x)
    assert counter.frame_count == 1


def test_a_baked_model_compiles_like_a_plain_one():
    model, plain = _net(), _net()
    sparsifier = _train(model, model, STR(s_init=-4.0), _batches())
    sparsifier.bake()
    plain.load_state_dict(model.state_dict())
    x, _ = _batches(1)[0]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model.eval(), backend=counter, fullgraph=True)
    expected = plain.eval()(x)
    torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(compiled(x), expected)
    assert counter.frame_count == 1


def test_a_model_compiled_while_managed_runs_after_baking():
    model = _net()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    sparsifier = _train(model, compiled, STR(s_init=-4.0), _batches())
    x, _ = _batches(1)[0]
    managed = compiled.eval()(x)
    assert sparsifier.bake() is model
    torch.testing.assert_close(compiled(x), managed)


def test_export_after_bake_shows_no_trace_of_thresholds():
    model = _net()
    sparsifier = _train(model, model, STR(s_init=-4.0), _batches())
    x, _ = _batches(1)[0]
    managed = model.eval()(x)
    sparsifier.bake()
    program = torch.export.export(model, (x,))
    assert set(program.state_dict) == set(_net().state_dict())
    operators = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    for trace in ("sigmoid", "abs", "sign", "clamp", "softshrink", "where", "gt"):
        assert not any(trace in operator for operator in operators), operators
    assert torch.equal(program.module()(x), managed)


def test_export_while_managed_keeps_the_operator():
    model = _net().eval()
    sparsify(model, STR(s_init=-2.0))
    x, _ = _batches(1)[0]
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x))
