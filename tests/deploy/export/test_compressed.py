"""Compressed state dicts: nothing is lost, little is wasted, nothing hostile is let in."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.torch import save_file as torch_save_file
from torch import nn

from softprune.deploy.export import load_compressed, save_compressed
from softprune.deploy.export.compressed import pack, unpack
from softprune.nn.catalog import build


def random_zeros(size, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator) * (torch.rand(size, generator=generator) < density)


def assert_values(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    b = torch.where(b == 0, torch.zeros_like(b), b)  # the sign of a zero is not kept
    assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["float64", "float32", "float16", "bfloat16", "int64", "int8", "uint8", "bool"]),
    st.lists(st.integers(0, 9), max_size=3),
    st.floats(0, 1),
    st.integers(0, 99),
)
def test_every_type_and_shape_comes_back(dtype, shape, density, seed):
    tensor = (random_zeros(shape, density, seed) * 3).to(getattr(torch, dtype))
    packed = pack(tensor)
    assert packed.size <= tensor.numel() * tensor.element_size()
    assert_values(unpack("w", packed.facts, packed.parts), tensor)


def test_what_is_no_ordinary_number_survives():
    tensor = torch.tensor([0.0, -0.0, math.nan, math.inf, 1e-45] + [0.0] * 50)
    packed = pack(tensor)
    assert packed.facts["form"] != "dense" and packed.facts["count"] == 3
    assert_values(unpack("w", packed.facts, packed.parts), tensor)


@pytest.mark.parametrize("density", [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7])
def test_size_is_within_five_percent_of_the_bound(tmp_path, density):
    state = {f"layer{i}.weight": random_zeros((256, 1000 + i), density, i) for i in range(4)}
    bound = 0.0
    for tensor in state.values():
        share = float((tensor != 0).float().mean())
        entropy = -(share * math.log2(share) + (1 - share) * math.log2(1 - share)) if 0 < share < 1 else 0.0
        bound += tensor.numel() * (4 * share + entropy / 8)
    assert save_compressed(state, tmp_path / "state.safetensors").stat().st_size < 1.05 * bound


def test_a_module_goes_out_and_comes_back(tmp_path):
    module = build("small_cnn")
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(torch.rand_like(p) < 0.1)
    path = save_compressed(module, tmp_path / "net.safetensors")
    state = load_compressed(path)
    assert list(state) == list(module.state_dict())
    for name, tensor in module.state_dict().items():
        assert_values(state[name], tensor)
    build("small_cnn").load_state_dict(state)
    again = save_compressed(state, tmp_path / "again.safetensors")
    assert path.read_bytes() == again.read_bytes()


def test_tied_weights_are_stored_once(tmp_path):
    a, b = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
    b.weight = a.weight
    path = save_compressed(nn.Sequential(a, b), tmp_path / "net.safetensors")
    assert path.stat().st_size < 1.2 * a.weight.numel() * 4
    state = load_compressed(path)
    assert torch.equal(state["1.weight"], a.weight) and torch.equal(state["0.weight"], a.weight)


def rewritten(path, change):
    """The file with its description or its bytes changed."""
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
        parts = {name: file.get_tensor(name).copy() for name in file.keys()}  # noqa: SIM118 - not a mapping
    tensors = json.loads(metadata["tensors"])
    change(tensors, parts, metadata)
    metadata["tensors"] = json.dumps(tensors) if isinstance(tensors, dict) else tensors
    save_file(parts, path, metadata)
    return path


def shorter(parts, name):
    parts[name] = parts[name][:-1].copy()


HOSTILE = {
    "larger than memory": (lambda t, p, m: t["w"].update(shape=[1 << 40, 1 << 20]), "max_bytes"),
    "negative size": (lambda t, p, m: t["w"].update(shape=[-1, 5]), "whole numbers"),
    "size is text": (lambda t, p, m: t["w"].update(shape=["5"]), "whole numbers"),
    "many axes": (lambda t, p, m: t["w"].update(shape=[1] * 40), "not described"),
    "unknown type": (lambda t, p, m: t["w"].update(dtype="object"), "not described"),
    "unknown form": (lambda t, p, m: t["w"].update(form="zip"), "not described"),
    "too many values": (lambda t, p, m: t["w"].update(count=1 << 30), "more values than places"),
    "fewer values": (lambda t, p, m: t["w"].update(count=3), "damaged"),
    "other bits": (lambda t, p, m: t["w"].update(bits=60), "damaged"),
    "smaller shape": (lambda t, p, m: t["w"].update(shape=[1500]), "damaged"),
    "larger shape": (lambda t, p, m: t["w"].update(shape=[3000]), "checksum"),
    "flipped value": (lambda t, p, m: p["1.values"].__setitem__(0, p["1.values"][0] ^ 1), "checksum"),
    "flipped gap": (lambda t, p, m: p["1.gaps"].__setitem__(0, p["1.gaps"][0] ^ 1), "damaged"),
    "values cut": (lambda t, p, m: shorter(p, "1.values"), "damaged"),
    "gaps cut": (lambda t, p, m: shorter(p, "1.gaps"), "damaged"),
    "part missing": (lambda t, p, m: p.pop("1.gaps"), "damaged"),
    "part of another type": (lambda t, p, m: p.update({"1.gaps": p["1.gaps"].astype(np.int32)}), "row of bytes"),
    "same as itself": (lambda t, p, m: t.update(v={"same": "v"}), "the same as"),
    "same as nothing": (lambda t, p, m: t.update(v={"same": ["w"]}), "the same as"),
    "same as a list, beside a tensor without a name": (
        lambda t, p, m: t.update({"": {**t["w"]}, "v": {"same": ["w"]}}),
        "the same as",
    ),
    "form is a list": (lambda t, p, m: t["w"].update(form=["rice"]), "not described"),
    "no id": (lambda t, p, m: t["w"].pop("id"), "it has no id"),
    "no object": (lambda t, p, m: t.update(v=7), "not described"),
    "other version": (lambda t, p, m: m.update(version="2"), "version '2'"),
    "other format": (lambda t, p, m: m.update(format="spx"), "not compressed by softprune"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused(tmp_path, case):
    change, message = HOSTILE[case]
    path = save_compressed({"w": random_zeros(2000, 0.05)}, tmp_path / "state.safetensors")
    with pytest.raises(ValueError, match=message):
        load_compressed(rewritten(path, change))


def test_a_part_of_a_type_that_numpy_has_not_is_refused(tmp_path):
    path = save_compressed({"w": random_zeros(2000, 0.05)}, tmp_path / "state.safetensors")
    with safe_open(path, framework="pt") as file:
        parts, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    torch_save_file({**parts, "1.values": parts["1.values"].view(torch.float8_e4m3fn)}, path, metadata)
    with pytest.raises(ValueError, match="row of bytes, got F8_E4M3"):
        load_compressed(path)


def test_cut_files_and_other_files_are_refused(tmp_path):
    path = save_compressed({"w": random_zeros(2000, 0.05)}, tmp_path / "state.safetensors")
    content = path.read_bytes()
    for length in (0, 7, 100, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="damaged or no safetensors"):
            load_compressed(path)
    with pytest.raises(ValueError, match="there is no file"):
        load_compressed(tmp_path / "absent")


def test_types_that_are_not_known_are_refused_before_writing(tmp_path):
    with pytest.raises(ValueError, match=r"torch\.complex64"):
        save_compressed({"w": torch.zeros(3, dtype=torch.complex64)}, tmp_path / "state.safetensors")
    assert not list(tmp_path.iterdir())
