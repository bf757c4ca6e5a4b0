"""Pickles of arrays: arrays come back, everything else is refused before it is called."""

import pickle
import pickletools

import numpy as np
import pytest
from data_files import python2_pickle

from softprune.train.data.array_pickle import load_arrays

PIXELS = np.arange(600, dtype=np.uint8).reshape(2, 300)


def test_python_2s_pickle_is_read():
    content = python2_pickle(PIXELS, [3, 9])
    named = {argument for opcode, argument, _ in pickletools.genops(content) if opcode.name == "GLOBAL"}
    assert named == {"numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"}
    batch = load_arrays(content)
    assert np.array_equal(batch[b"data"], PIXELS)
    assert batch[b"labels"] == [3, 9]
    assert batch[b"batch_label"] == b"test"


@pytest.mark.parametrize("protocol", [3, 4])
def test_this_numpys_own_pickles_are_read(protocol):
    batch = load_arrays(pickle.dumps({b"data": PIXELS, b"labels": [3, 9]}, protocol=protocol))
    assert np.array_equal(batch[b"data"], PIXELS)


class Runs:
    """Unpickling this calls a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_in_a_pickle_runs(tmp_path, protocol):
    victim = tmp_path / "ran"
    for attack in (Runs(exec, f"open({str(victim)!r}, 'w')"), Runs(np.save, victim, 1), Runs(open, str(victim), "w")):
        content = pickle.dumps({b"data": PIXELS.tolist(), b"labels": attack}, protocol=protocol)
        with pytest.raises(ValueError, match="not a pickle of plain arrays: it asks for"):
            load_arrays(content)
        assert not victim.exists()
    pickle.loads(pickle.dumps(Runs(open, str(victim), "w")))
    assert victim.exists()  # so that the check above could have failed


@pytest.mark.parametrize(
    ("module", "name"),
    [("builtins", "eval"), ("numpy", "fromfile"), ("numpy", "ndarray.tofile"), ("numpy.core.multiarray", "fromfile"),
     ("copyreg", "_reconstructor"), ("_codecs", "encode")],
)  # fmt: skip
def test_only_exact_names_pass(module, name):
    content = b"\x80\x04\x8c" + bytes((len(module),)) + module.encode()
    content += b"\x8c" + bytes((len(name),)) + name.encode() + b"\x93."
    with pytest.raises(ValueError, match=f"it asks for {module}.{name}"):
        load_arrays(content)


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
BYTE = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
NESTED = b")" + b"\x85" * 100_000
HOSTILE = {
    "a record as a type": b"cnumpy\ndtype\n(](U\x01aU\x02i4\x86eK\x00K\x01tR.",
    "an object as a type": b"cnumpy\ndtype\n(U\x01OK\x00K\x01tR.",
    "a type with a number of bytes": b"cnumpy\ndtype\n(U\x0aV999999999K\x00K\x01tR.",
    "a deep type": b"cnumpy\ndtype\n(" + NESTED + b"K\x00K\x01tR.",
    "a state with fields": BYTE + b"(K\x03U\x01|NU\x01aN\x85tb.",
    "a state that is none": BYTE + b"K\x03b.",
    "a type as its own state": BYTE + b"q\x00h\x00\x85b.",
    "an array of negative size": ARRAY + b"(K\x01(J\xff\xff\xff\xfft" + BYTE + b"\x89U\x01atb.",
    "an array larger than its bytes": ARRAY + b"(K\x01(J\xff\xff\xff\x7ft" + BYTE + b"\x89U\x01atb.",
    "an array of objects": ARRAY + b"(K\x01(K\x01tcnumpy\ndtype\n(U\x02O8K\x00K\x01tR\x89](Netb.",
    "an array as a function": ARRAY + b")R.",
    "ndarray called": b"cnumpy\nndarray\n(M\xff\xfftR.",
    "ndarray made": b"cnumpy\nndarray\nK\x04\x85\x81.",
    "a memo of gigabytes": b"Nr\xff\xff\xff\x0f\x81.",
    "a deep key": b"}" + NESTED + b"Ns.",
    "too many opcodes": b"(" + b"}" * 300_000 + b"t.",
    "a string that promises more": b"T\xff\xff\xff\x7fabc.",
    "nothing to take": b"R.",
    "two results": b"NN.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_arguments_that_numpy_never_wrote_reach_nothing(name):
    with pytest.raises(ValueError, match="not a pickle of plain arrays"):
        load_arrays(b"\x80\x04" + HOSTILE[name])


def test_number_types_and_orders_of_bytes():
    for wanted in (np.arange(6, dtype=">i4").reshape(2, 3), np.asfortranarray(np.ones((2, 3), "<f8")), PIXELS > 9):
        found = load_arrays(pickle.dumps(wanted, protocol=3))
        assert found.dtype == wanted.dtype and np.array_equal(found, wanted)


@pytest.mark.parametrize("content", [b"", b"no pickle", python2_pickle(PIXELS, [3, 9])[:-30], b"\x80\x02\x82\x01."])
def test_damage_is_a_value_error(content):
    with pytest.raises(ValueError, match="not a pickle of plain arrays"):
        load_arrays(content)
