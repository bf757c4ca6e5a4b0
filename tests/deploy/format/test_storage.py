"""How weights lie in the file."""

import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from softprune.deploy.export.exporting import write_spx
from softprune.deploy.format.graph import Graph, Op
from softprune.deploy.format.spx import read_spx
from softprune.deploy.format.storage import _as_gaps, _as_mask, _as_rice, read_weight, stored


def sparse(shape, density, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * (rng.random(shape) < density)).astype(np.float32)


def from_mask(parts, size):
    """Decoded as the format says, bit by bit."""
    values, out = iter(parts["w.values"]), np.zeros(size, parts["w.values"].dtype)
    for place in range(size):
        if parts["w.mask"][place // 8] >> (place % 8) & 1:
            out[place] = next(values)
    return out


def from_gaps(parts, size):
    """Decoded as the format says, step by step."""
    out, place = np.zeros(size, parts["w.values"].dtype), -1
    for gap, value in zip(parts["w.gaps"], parts["w.values"], strict=True):
        place += int(gap) + 1
        out[place] = value
    return out


def test_mask_by_hand():
    parts = _as_mask("w", np.float32([0, 5, 0, 0, 0, 0, 0, 0, 7, -1]))
    assert parts["w.mask"].tolist() == [0b00000010, 0b00000011] and parts["w.values"].tolist() == [5, 7, -1]


def test_gaps_by_hand():
    weight = np.zeros(600, np.float32)
    weight[[2, 3, 259, 517, 518, 519]] = 1, 2, 3, 4, 5, 6
    parts = _as_gaps("w", weight)
    # 255 zeros between 3 and 259 fit in a byte; of the 257 behind, 255 and a stored zero come first.
    assert parts["w.gaps"].dtype == np.uint8 and parts["w.gaps"].tolist() == [2, 0, 255, 255, 1, 0, 0]
    assert parts["w.values"].tolist() == [1, 2, 3, 0, 4, 5, 6]


def test_two_bytes_where_steps_would_cost_more():
    weight = np.zeros(100_000, np.float32)
    weight[::5000] = 1
    parts = _as_gaps("w", weight)
    assert parts["w.gaps"].dtype == np.uint16 and len(parts["w.values"]) == 20
    far = np.zeros(70_000, np.float32)
    far[-1] = 2
    assert np.array_equal(from_gaps(_as_gaps("w", far), far.size), far)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3000), st.floats(0, 1), st.integers(0, 99))
def test_both_forms_give_the_weight_back(size, density, seed):
    weight = sparse(size, density**4, seed)
    assert np.array_equal(from_mask(_as_mask("w", weight), size), weight)
    assert np.array_equal(from_gaps(_as_gaps("w", weight), size), weight)


@pytest.mark.parametrize(
    ("density", "expected"), [(1.0, "dense"), (0.5, "mask"), (0.2, "mask"), (0.05, "gaps"), (0.0, "gaps")]
)
def test_the_smallest_form_is_taken(density, expected):
    weight = sparse((64, 64), density)
    form, parts = stored("w", weight)
    assert form == expected
    sizes = [weight.nbytes, *(sum(t.nbytes for t in f("w", weight.reshape(-1)).values()) for f in (_as_mask, _as_gaps))]
    assert sum(t.nbytes for t in parts.values()) == min(sizes)


def test_vectors_stay_whole():
    assert stored("b", np.zeros(1000, np.float32))[0] == "dense"
    for dtype in (np.int8, np.int32, np.uint8):
        assert stored("b", np.zeros(1000, dtype))[0] == "dense"


def small(shape, density, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.integers(1, 128, shape) * rng.choice([-1, 1], shape) * (rng.random(shape) < density)).astype(np.int8)


def from_rice(parts, size):
    """Decoded as the format says, bit by bit: k; the quotients as ones that end in a zero; the lower bits."""
    bits, *code = parts["w.rice"].tolist()
    stream = [byte >> place & 1 for byte in code for place in range(8)]
    quotients, at = [], 0
    for _ in parts["w.values"]:
        end = stream.index(0, at)
        quotients.append(end - at)
        at = end + 1
    at, out, place = -(-at // 8) * 8, np.zeros(size, np.int8), -1
    for quotient, value in zip(quotients, parts["w.values"], strict=True):
        place += (quotient << bits) + sum(stream[at + bit] << bit for bit in range(bits)) + 1
        out[place] = value
        at += bits
    return out


def test_rice_codes_by_hand():
    weight = np.zeros(19, np.int8)
    weight[[1, 8, 18]] = 5, -7, 127  # after gaps of 1, 6 and 9
    parts = _as_rice("w", weight)
    assert parts["w.rice"].tolist() == [2, 0b011010, 0b011001] and parts["w.values"].tolist() == [5, -7, 127]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3000), st.floats(0, 1), st.integers(0, 99))
def test_all_forms_give_small_numbers_back(size, density, seed):
    weight = small(size, density**4, seed)
    for make, decode in ((_as_mask, from_mask), (_as_gaps, from_gaps), (_as_rice, from_rice)):
        parts = make("w", weight)
        assert parts["w.values"].dtype == np.int8 and np.array_equal(decode(parts, size), weight)


@pytest.mark.parametrize(
    ("density", "expected"), [(1.0, "dense"), (0.5, "mask"), (0.3, "rice"), (0.02, "rice"), (0.0, "gaps")]
)
def test_the_smallest_form_of_small_numbers_is_taken(density, expected):
    weight = small((64, 64), density)
    form, parts = stored("w", weight)
    assert form == expected
    others = [_as_mask, _as_gaps, _as_rice]
    sizes = [weight.nbytes, *(sum(t.nbytes for t in make("w", weight.reshape(-1)).values()) for make in others)]
    assert sum(t.nbytes for t in parts.values()) == min(sizes)


@pytest.mark.parametrize("zeros", [0.5, 0.7, 0.8, 0.9, 0.95, 0.98])
def test_random_zeros_cost_little_more_than_their_entropy(zeros):
    for shape in ((64, 64, 1, 1), (64, 64, 3, 3), (512, 1024, 1, 1), (1000, 512)):
        weight = small(shape, 1 - zeros)
        kept = np.count_nonzero(weight)
        share = kept / weight.size
        entropy = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
        size = sum(part.nbytes for part in stored("w", weight)[1].values())
        assert size <= 1.1 * (kept + weight.size * entropy / 8), (shape, zeros)


def one_layer(weight):
    fields = {"weight": "w0", "bias": "w1", "activation": None, "residual": None}
    return Graph(
        {"x0": (None, weight.shape[1])},
        ["v0"],
        [Op("linear", "fc", ["x0"], "v0", fields)],
        {"w0": weight, "w1": np.arange(len(weight), dtype=np.float32)},
        {},
    )


def test_the_file_is_a_safetensors_file_with_the_same_bytes_every_time(tmp_path):
    weight = sparse((40, 30), 0.1)
    for name in ("a.spx", "b.spx"):
        write_spx(one_layer(weight), tmp_path / name)
    content = (tmp_path / "a.spx").read_bytes()
    assert content == (tmp_path / "b.spx").read_bytes()
    assert (8 + int.from_bytes(content[:8], "little")) % 64 == 0
    with safe_open(tmp_path / "a.spx", framework="np") as file:
        metadata = file.metadata()
        parts = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    graph = json.loads(metadata["graph"])
    assert (metadata["format"], metadata["version"]) == ("spx", "1")
    assert graph["weights"] == {"w0": {"shape": [40, 30], "storage": "gaps"}, "w1": {"shape": [40], "storage": "dense"}}
    decoded = from_gaps({f"w.{key}": parts[f"w0.{key}"] for key in ("gaps", "values")}, 1200)
    assert np.array_equal(decoded.reshape(40, 30), weight)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.spx", "b.spx"]  # nothing temporary is left


@pytest.mark.parametrize("density", [1.0, 0.3, 0.02, 0.0])
def test_the_reader_of_the_runtime_agrees(tmp_path, density):
    weight = sparse((50, 41), density)
    write_spx(one_layer(weight), tmp_path / "net.spx")
    read = read_spx(tmp_path / "net.spx").weights
    assert np.array_equal(read["w0"].dense(), weight) and read["w1"].dense().tolist() == list(range(50))


def test_an_infinite_number_in_the_graph_is_refused(tmp_path):
    graph = one_layer(sparse((2, 2), 1))
    graph.ops.append(Op("add", "", ["v0"], "v1", {"value": math.inf}))
    with pytest.raises(ValueError, match="Out of range float values"):
        write_spx(graph, tmp_path / "net.spx")
    assert not list(tmp_path.iterdir())


def coded(bits, codes, values=3, dtype=np.int8, shape=(19,)):
    """A weight with Rice codes as a file may have it."""
    tensors = {"w.rice": np.array([bits, *codes], np.uint8)}
    return read_weight("w", {"shape": list(shape), "storage": "rice"}, {**tensors, "w.values": np.ones(values, dtype)})


# Of the codes of test_rice_codes_by_hand: k = 2, gaps of 1, 6 and 9 lead to place 18.
HEAD, REST = 0b011010, 0b011001
FORGED = {
    "nothing": (lambda: read_weight("w", {"shape": [9], "storage": "rice"}, {"w.values": np.int8([1])}), "w.rice"),
    "floats": (lambda: coded(2, [HEAD, REST], dtype=np.float32), "'w.values' is missing or not of type i1"),
    "one byte more": (lambda: coded(2, [HEAD, REST, 0]), "does not hold 3"),
    "one byte less": (lambda: coded(2, [HEAD]), "does not hold 3"),
    "one value more": (lambda: coded(2, [0b11011010, REST], values=4), "does not hold 4"),
    "places behind the end": (lambda: coded(2, [HEAD, REST], shape=(18,)), "lead to place 18 of 18 numbers"),
    "more values than places": (lambda: coded(0, [0] * 3, values=20), "lead to place 19 of 19 numbers"),
    "many bits": (lambda: coded(33, [0], values=1), "Rice codes of 33 bits"),
    "bits that no gap needs": (lambda: coded(27, [0] * 500_000, values=1000, shape=(1 << 27,)), "of 27 bits for 1000"),
    "a long code": (lambda: coded(0, [255] * 1_000_000, values=1, shape=(100,)), "1000001 bytes, at most 15 are used"),
    "empty": (lambda: coded(0, [], values=0, shape=(1 << 28,)), "too large"),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGED)
def test_forged_rice_codes_are_refused_in_little_memory(what):
    make, message = FORGED[what]
    assert coded(2, [HEAD, REST]).nonzeros()[0].tolist() == [1, 8, 18]
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message):
            make()
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_weights_of_other_types_are_refused():
    for storage, dtype in (("dense", np.uint16), ("mask", np.uint8), ("gaps", np.int32), ("rice", np.uint8)):
        tensors = {name: np.zeros(2, dtype) for name in ("w", "w.values")}
        with pytest.raises(ValueError, match="is missing or not of type"):
            read_weight("w", {"shape": [2], "storage": storage}, tensors)
