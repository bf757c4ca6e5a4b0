import pytest
import torch

from softprune import nn as networks
from softprune.nn.catalog import NETWORKS, build


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_runs_on_its_example(name):
    with torch.device("meta"):
        out = build(name)(torch.zeros(NETWORKS[name].example_shape))
    assert out.shape[0] == 1
    assert out.dim() == 2


def test_any_factory_by_path():
    assert isinstance(build("torch.nn:Identity"), torch.nn.Identity)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("resnet51", ValueError, "no network 'resnet51': choose resnet50, .*'package.module:factory'"),
        ("no_such_package.nets:make", ValueError, "there is no module 'no_such_package'"),
        ("torch.no_such_module:make", ValueError, "there is no module 'torch.no_such_module'"),
        ("torch.nn:NoSuchLayer", ValueError, "torch.nn has no callable 'NoSuchLayer'"),
        ("collections:OrderedDict", TypeError, "returned a OrderedDict, not a torch.nn.Module"),
    ],
)
def test_wrong_names_say_what_is_wrong(name, error, message):
    with pytest.raises(error, match=message):
        build(name)


def test_a_module_that_fails_to_import_something_else_keeps_its_message(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text("import absent_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="absent_dependency"):
        build("my_nets:make")


def test_names_of_the_package_are_looked_up_when_used():
    assert networks.resnet20 is not None
    assert set(networks.__all__) <= set(dir(networks))
    with pytest.raises(AttributeError, match="no attribute 'resnet99'"):
        _ = networks.resnet99
