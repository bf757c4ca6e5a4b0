"""What cannot work is refused by name with a way out, and the model is as it was."""

import pytest
import torch
from by_hand import fingerprint, same_fingerprint
from torch import nn
from torch.nn.utils import parametrizations, prune, weight_norm

from softprune.core.bake import bake, remove
from softprune.core.rule import Rule
from softprune.core.sparsify import freeze_support, sparsify
from softprune.methods import STR


def pair(second=None):
    """Two layers of which the second is the troublesome one."""
    return nn.Sequential(nn.Linear(4, 4), second or nn.Linear(4, 4))


def norm_of_torch():
    return pair(parametrizations.weight_norm(nn.Linear(4, 4)))


def spectral():
    return pair(parametrizations.spectral_norm(nn.Linear(4, 4)))


def old_weight_norm():
    with pytest.warns(FutureWarning):
        return pair(weight_norm(nn.Linear(4, 4)))


def pruned():
    model = pair()
    prune.l1_unstructured(model[1], "weight", 0.5)
    return model


def poisoned(value):
    model = pair()
    with torch.no_grad():
        model[1].weight[1, 2] = value
        model[1].weight[3, 3] = value
    return model


def sharing_memory():
    model = pair()
    model[1].weight = nn.Parameter(model[0].weight.detach())
    return model


def overlapping():
    """Two views of one buffer that have one row in common."""
    buffer, model = torch.randn(7, 4), pair()
    model[0].weight, model[1].weight = nn.Parameter(buffer[:4]), nn.Parameter(buffer[3:])
    return model


def stored_sparsely():
    model = pair()
    model[1].weight = nn.Parameter(torch.randn(4, 4).to_sparse())
    return model


def empty():
    model = pair(nn.Linear(4, 4))
    model[1].weight = nn.Parameter(torch.zeros(0, 4))
    return model


def sparsified():
    model = pair()
    sparsify(model, STR(s_init=-2.0), skip=["0"])
    return model


CASES = {
    "parametrized by weight_norm": (
        norm_of_torch,
        r"1\.weight already has the parametrization _WeightNorm.*remove_param",
    ),
    "parametrized by spectral_norm": (
        spectral,
        r"1\.weight already has the parametrization _SpectralNorm.*skip=\['1.we",
    ),
    "old weight_norm": (old_weight_norm, r"1\.weight is not a parameter .*remove_weight_norm.*skip=\['1\.weight'\]"),
    "pruned by torch": (pruned, r"1\.weight is not a parameter \(pruned .*prune\.remove"),
    "NaN": (lambda: poisoned(float("nan")), r"1\.weight has 2 NaN or infinite weights of 16"),
    "infinity": (lambda: poisoned(float("-inf")), r"1\.weight has 2 NaN or infinite weights of 16"),
    "lazy": (lambda: pair(nn.LazyLinear(4)), r"1\.weight has no shape yet: run"),
    "shared storage": (sharing_memory, r"0\.weight and 1\.weight share memory .*same Parameter"),
    "overlapping storage": (overlapping, r"0\.weight and 1\.weight share memory"),
    "sparse layout": (stored_sparsely, r"1\.weight is stored sparsely \(torch\.sparse_coo\).*to_dense"),
    "no elements": (empty, r"1\.weight has no elements \(shape \(0, 4\)\).*skip"),
    "sparsified twice": (sparsified, r"1\.weight is sparsified already: call bake\(\) or remove\(\)"),
    "renormalised embedding": (lambda: pair(nn.Embedding(4, 4, max_norm=1.0)), r"1\.weight .*max_norm=None"),
    "sparse gradient": (lambda: pair(nn.EmbeddingBag(4, 4, sparse=True)), r"1\.weight .*sparse=False"),
    "wrapped in DataParallel": (lambda: nn.DataParallel(pair()), "DataParallel has already registered .* then wrap it"),
    "a part in DataParallel": (lambda: pair(nn.DataParallel(pair())), "1 is wrapped in DataParallel"),
    "compiled DataParallel": (
        lambda: torch.compile(nn.DataParallel(pair()), backend="eager"),
        "DataParallel has already registered",
    ),
    "nothing to manage": (
        lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm1d(4)),
        "nothing to sparsify in Sequential: it has no",
    ),
    "everything frozen": (lambda: pair().requires_grad_(False), r"nothing to .*0\.weight: frozen .*1\.weight: frozen"),
    "complex": (lambda: pair().to(torch.complex64), r"nothing to .*0\.weight: dtype torch\.complex64"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_by_name_and_untouched(case):
    build, message = CASES[case]
    model = build()
    before = fingerprint(model)
    with pytest.raises(ValueError, match=message):
        sparsify(model, STR(s_init=-2.0))
    assert same_fingerprint(before, fingerprint(model))


@pytest.mark.parametrize(
    "case",
    ["parametrized by weight_norm", "parametrized by spectral_norm", "old weight_norm", "pruned by torch", "NaN",
     "sparse layout", "no elements", "sparsified twice", "renormalised embedding", "sparse gradient"],
)  # fmt: skip
def test_the_way_out_works(case):
    model = CASES[case][0]()
    sparsifier = sparsify(model, STR(s_init=-2.0), skip=["1.weight"])
    assert [t.name for t in sparsifier.targets] == ["0.weight"]


def test_distributed_wrapper_is_refused():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(pair())
        before = fingerprint(model)
        with pytest.raises(ValueError, match="sparsify the module first, then wrap it in DistributedDataParallel"):
            sparsify(model, STR())
        assert same_fingerprint(before, fingerprint(model))
        # Its own module can be baked through the wrapper.
        inner = pair()
        sparsify(inner, STR(s_init=-2.0))
        assert bake(nn.parallel.DistributedDataParallel(inner)) is inner
        assert type(inner[0]) is nn.Linear
    finally:
        # The threads of the group are joined while the interpreter is locked: none may still be at work.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_script_modules_are_refused():
    script = torch.jit.script(pair())
    with pytest.raises(ValueError, match=r"TorchScript module cannot be changed .*script after bake"):
        sparsify(script, STR())
    model = nn.Sequential(nn.Linear(4, 4), script)
    x = torch.randn(2, 4)
    expected = model(x)
    with pytest.raises(ValueError, match=r"1\.0\.weight is in a TorchScript module.*skip"):
        sparsify(model, STR(), rules=[Rule("1.0.weight", skip=False)])
    assert type(model[0]) is nn.Linear and torch.equal(model(x), expected)


@pytest.mark.parametrize("thing", [None, "resnet50", torch.zeros(3), nn.Linear])
def test_not_a_module(thing):
    with pytest.raises(TypeError, match=r"works on a torch\.nn\.Module, got"):
        sparsify(thing, STR())
    with pytest.raises(TypeError, match=r"works on a torch\.nn\.Module, got"):
        freeze_support(thing)


def test_an_empty_selection_says_why():
    model = pair()
    before = fingerprint(model)
    with pytest.raises(ValueError, match=r"nothing to sparsify in Sequential: 0\.weight: skipped; 1\.weight: skipped"):
        sparsify(model, STR(), skip=["*"])
    assert same_fingerprint(before, fingerprint(model))


def test_a_single_number_is_refused_before_anything_is_changed():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.scale = nn.Parameter(torch.tensor(1.0))

    model = Scaled()
    before = fingerprint(model)
    with pytest.raises(ValueError, match="scale is a single number"):
        sparsify(model, STR(), rules=[Rule("scale", skip=False)])
    assert same_fingerprint(before, fingerprint(model))


def test_a_skipped_tensor_that_shares_memory_is_refused_too():
    """Bake would write into it."""
    with pytest.raises(ValueError, match=r"0\.weight and 1\.weight share memory"):
        sparsify(sharing_memory(), STR(), skip=["1"])


def test_views_of_one_buffer_that_do_not_overlap_are_fine():
    """cuDNN keeps the weights of a recurrent layer in one buffer."""
    buffer, model = torch.randn(8, 4), pair()
    model[0].weight, model[1].weight = nn.Parameter(buffer[:4]), nn.Parameter(buffer[4:])
    sparsifier = sparsify(model, STR(s_init=-2.0))
    assert len(sparsifier.targets) == 2
    sparsifier.bake()
    assert int((buffer == 0).sum()) == sum(int((m.weight == 0).sum()) for m in model) > 0


def test_a_compiled_model_is_sparsified_inside():
    model = pair()
    sparsifier = sparsify(torch.compile(model, backend="eager"), STR(s_init=-2.0))
    assert sparsifier.model is model and [t.name for t in sparsifier.targets] == ["0.weight", "1.weight"]
    assert bake(torch.compile(model, backend="eager")) is model


@pytest.mark.parametrize("leave", [bake, remove])
def test_nothing_to_bake(leave):
    with pytest.raises(ValueError, match="nothing is managed in Sequential"):
        leave(pair())
