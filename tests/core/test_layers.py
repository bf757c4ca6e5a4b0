"""Every kind of layer: the forward, the training, bake and remove against the formula on the plain module."""

import copy

import pytest
import torch
from by_hand import loss_of, reference_output, shrunk, tensors
from torch import nn
from torch.func import functional_call

from softprune.core.sparsify import sparsify
from softprune.methods import STR

S_INIT = -2.0
ALPHA = torch.sigmoid(torch.tensor([S_INIT]))


def attention(**kwargs):
    return nn.MultiheadAttention(8, 2, batch_first=True, **kwargs)


def encoder(**kwargs):
    return nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, dropout=0.0, batch_first=True, **kwargs)


def numbers(*shape):
    return lambda: (torch.randn(*shape),)


def tokens():
    return (torch.randint(0, 7, (3, 4)),)


def triple(query, key, value):
    return lambda: (torch.randn(2, 3, query), torch.randn(2, 4, key), torch.randn(2, 4, value))


def bag():
    return (torch.randint(0, 7, (6,)), torch.tensor([0, 2, 5]))


# name -> module, inputs, the names of its managed tensors
LAYERS = {
    "conv1d": (lambda: nn.Conv1d(3, 4, 3), numbers(2, 3, 8), ["weight"]),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), numbers(2, 3, 8, 8), ["weight"]),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), numbers(2, 2, 4, 4, 4), ["weight"]),
    "conv2d grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), numbers(2, 4, 6, 6), ["weight"]),
    "conv2d depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, bias=False), numbers(2, 4, 6, 6), ["weight"]),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, groups=2), numbers(2, 4, 5), ["weight"]),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), numbers(2, 3, 4, 4), ["weight"]),
    "conv_transpose2d grouped": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), numbers(2, 4, 4, 4), ["weight"]),
    "conv_transpose3d": (lambda: nn.ConvTranspose3d(4, 4, 2, groups=4), numbers(1, 4, 3, 3, 3), ["weight"]),
    "linear": (lambda: nn.Linear(5, 4), numbers(3, 5), ["weight"]),
    "bilinear": (lambda: nn.Bilinear(3, 4, 5), lambda: (torch.randn(6, 3), torch.randn(6, 4)), ["weight"]),
    "embedding": (lambda: nn.Embedding(7, 5, padding_idx=0), tokens, ["weight"]),
    "embedding_bag": (lambda: nn.EmbeddingBag(7, 5, mode="sum"), bag, ["weight"]),
    "attention": (attention, triple(8, 8, 8), ["in_proj_weight", "out_proj.weight"]),
    "attention kdim vdim": (
        lambda: attention(kdim=5, vdim=6, add_bias_kv=True),
        triple(8, 5, 6),
        ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"],
    ),
    "encoder layer": (
        encoder,
        numbers(2, 3, 8),
        ["self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight"],
    ),
    "rnn": (
        lambda: nn.RNN(3, 4, num_layers=2, bidirectional=True),
        numbers(5, 2, 3),
        [f"weight_{k}_l{n}{r}" for n in (0, 1) for r in ("", "_reverse") for k in ("ih", "hh")],
    ),
    "gru": (
        lambda: nn.GRU(3, 4, num_layers=2),
        numbers(5, 2, 3),
        [f"weight_{k}_l{n}" for n in (0, 1) for k in ("ih", "hh")],
    ),
    "lstm": (
        lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, proj_size=2),
        numbers(5, 2, 3),
        [f"weight_{k}_l{n}{r}" for n in (0, 1) for r in ("", "_reverse") for k in ("ih", "hh", "hr")],
    ),
    "rnn cell": (lambda: nn.RNNCell(3, 4), numbers(2, 3), ["weight_ih", "weight_hh"]),
    "gru cell": (lambda: nn.GRUCell(3, 4), lambda: (torch.randn(2, 3), torch.randn(2, 4)), ["weight_ih", "weight_hh"]),
    "lstm cell": (
        lambda: nn.LSTMCell(3, 4),
        lambda: (torch.randn(2, 3), (torch.randn(2, 4), torch.randn(2, 4))),
        ["weight_ih", "weight_hh"],
    ),
}


@pytest.fixture(params=list(LAYERS))
def case(request):
    build, inputs, names = LAYERS[request.param]
    # A cell that starts from nothing sends no gradient to its recurrent weights: give it a hidden state.
    made = inputs() if request.param != "rnn cell" else (torch.randn(2, 3), torch.randn(2, 4))
    return build(), made, names


def alphas_for(names):
    return dict.fromkeys(names, ALPHA)


def test_manages_exactly_the_weights(case):
    module, _, names = case
    sparsifier = sparsify(module, STR(s_init=S_INIT))
    assert sorted(t.name for t in sparsifier.targets) == sorted(names)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gradient", [True, False])
def test_forward_is_that_of_the_shrunk_weights(case, training, gradient):
    module, inputs, names = case
    module.train(training)
    plain = copy.deepcopy(module)
    sparsifier = sparsify(module, STR(s_init=S_INIT))
    for target in sparsifier.targets:
        expected = shrunk(dict(plain.named_parameters())[target.name], ALPHA)
        assert torch.equal(target.effective, expected)
        assert bool(expected.any())
    assert any(not t.effective.all() for t in sparsifier.targets)
    with torch.set_grad_enabled(gradient):
        ours, theirs = module(*inputs), reference_output(plain, alphas_for(names), inputs)
    for a, b in zip(tensors(ours), tensors(theirs), strict=True):
        assert torch.equal(a, b)


def test_trains_like_the_formula_on_the_plain_module(case):
    """Several steps of SGD with momentum and decay: raw weights, thresholds and the rest follow the same path."""
    module, inputs, names = case
    plain = copy.deepcopy(module)
    raw = {name: p.detach().clone().requires_grad_() for name, p in plain.named_parameters()}
    s = {name: torch.full((1,), S_INIT).requires_grad_() for name in names}
    sparsifier = sparsify(module, STR(s_init=S_INIT))
    ours = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9, weight_decay=0.01)
    theirs = torch.optim.SGD([*raw.values(), *s.values()], lr=1e-4, momentum=0.9, weight_decay=0.01)
    start = {t.name: (t.raw.detach().clone(), t.transform.s.detach().clone()) for t in sparsifier.targets}
    for _ in range(4):
        ours.zero_grad()
        loss_of(module(*inputs)).backward()
        for target in sparsifier.targets:
            assert target.raw.grad is not None and bool(target.raw.grad.any()), target.name
            assert bool(target.transform.s.grad.any()), target.name
        ours.step()
        theirs.zero_grad()
        used = {name: shrunk(w, torch.sigmoid(s[name])) if name in s else w for name, w in raw.items()}
        loss_of(functional_call(plain, used, inputs)).backward()
        theirs.step()
    for target in sparsifier.targets:
        assert not torch.equal(target.raw, start[target.name][0])
        assert not torch.equal(target.transform.s, start[target.name][1])
        torch.testing.assert_close(target.raw, raw[target.name], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(target.transform.s, s[target.name], rtol=1e-4, atol=1e-6)
    for name in set(raw) - set(names):
        torch.testing.assert_close(module.get_parameter(name), raw[name].detach(), rtol=1e-4, atol=1e-6)


def test_bake_restores_the_module_and_its_output(case):
    module, inputs, names = case
    classes = [type(m) for m in module.modules()]
    keys, parameters = list(module.state_dict()), list(module.parameters())
    raw = {name: p.detach().clone() for name, p in module.named_parameters()}
    sparsifier = sparsify(module, STR(s_init=S_INIT))
    module.eval()
    before = tensors(module(*inputs))
    with torch.no_grad():
        without_gradient = tensors(module(*inputs))
    assert sparsifier.bake() is module
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(module(*inputs)), strict=True))
    assert [type(m) for m in module.modules()] == classes
    assert list(module.state_dict()) == keys
    assert [id(p) for p in module.parameters()] == [id(p) for p in parameters]
    for name, p in module.named_parameters():
        assert torch.equal(p, shrunk(raw[name], ALPHA) if name in names else raw[name])
        assert p.requires_grad and p.is_leaf
    # torch.matmul takes another kernel for a weight that requires gradients, even where none are recorded.
    module.requires_grad_(False)
    assert all(torch.equal(a, b) for a, b in zip(without_gradient, tensors(module(*inputs)), strict=True))


def test_remove_restores_the_raw_values(case):
    module, inputs, _ = case
    plain = copy.deepcopy(module)
    parameters = list(module.parameters())
    sparsifier = sparsify(module, STR(s_init=S_INIT))
    module(*inputs)
    assert sparsifier.remove() is module
    assert [type(m) for m in module.modules()] == [type(m) for m in plain.modules()]
    assert [id(p) for p in module.parameters()] == [id(p) for p in parameters]
    assert list(module.state_dict()) == list(plain.state_dict())
    for key, value in plain.state_dict().items():
        assert torch.equal(module.state_dict()[key], value)
    for a, b in zip(tensors(module(*inputs)), tensors(plain(*inputs)), strict=True):
        assert torch.equal(a, b)


def test_recurrent_weights_go_on_training_after_a_pass_without_gradient():
    """The layer keeps a list of its weights; one made in evaluation must not be used for training."""
    module, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    sparsifier = sparsify(module, STR(s_init=S_INIT))
    for _ in range(3):
        module.eval()
        with torch.no_grad():
            seen = module(x)[0]
        module.train()
        module.zero_grad()
        out = module(x)[0]
        torch.testing.assert_close(out, seen)  # oneDNN has another kernel for inference
        out.square().sum().backward()
        for target in sparsifier.targets:
            assert bool(target.raw.grad.any())
            with torch.no_grad():
                target.raw.sub_(target.raw.grad)


def test_recurrent_weights_train_on_after_bake():
    module, x = nn.GRU(3, 4), torch.randn(5, 2, 3)
    sparsifier = sparsify(module, STR(s_init=S_INIT))
    module(x)[0].sum().backward()
    sparsifier.bake()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.zero_grad()
    module(x)[0].square().sum().backward()
    optimizer.step()
    assert all(not torch.equal(p, before[name]) for name, p in module.named_parameters())


def test_attention_takes_its_fast_path_in_eval():
    """The fused kernel reads the weights itself; it must read the shrunk ones."""
    module = attention().eval()
    plain = copy.deepcopy(module)
    sparsify(module, STR(s_init=S_INIT))
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        fast = module(x, x, x, need_weights=False)[0]
        theirs = reference_output(plain, alphas_for(["in_proj_weight", "out_proj.weight"]), (x, x, x))[0]
        dense = plain(x, x, x, need_weights=False)[0]
    torch.testing.assert_close(fast, theirs)
    assert not torch.allclose(fast, dense)
