"""Memory that is used again, and only once nobody needs it."""

import gc

import pytest
import torch

from softprune.ops.recurrence import fused as module
from softprune.ops.recurrence.fused import KEPT, LINE, reused_tensor


def test_memory_is_used_again_once_its_tensor_is_gone():
    module._waiting.clear()
    first = reused_tensor(300, 5)
    address, view = first.data_ptr(), first[1:]
    del first
    other = reused_tensor(300, 5)
    assert other.data_ptr() != address  # a view still needs it
    del view
    gc.collect()
    assert reused_tensor(300, 5).data_ptr() == address


def test_only_memory_of_about_the_size_is_taken():
    module._waiting.clear()
    address = reused_tensor(1000).data_ptr()
    assert reused_tensor(100).data_ptr() != address
    assert reused_tensor(1001).data_ptr() != address
    assert reused_tensor(600).data_ptr() == address


def test_tensors_begin_with_a_cache_line_and_few_arrays_wait():
    module._waiting.clear()
    made = [reused_tensor(7, size) for size in range(1, 12)]
    assert all(tensor.data_ptr() % (4 * LINE) == 0 for tensor in made)
    assert all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in made)
    del made
    gc.collect()
    assert len(module._waiting) <= KEPT


def test_no_numbers_need_no_memory():
    assert reused_tensor(0, 3).shape == (0, 3)


@pytest.mark.parametrize(("wanted", "left"), [(1000, 0), (500, 0), (499, 1), (1001, 1)])
def test_an_array_of_just_the_size_and_one_of_twice_that_are_taken(wanted, left):
    module._waiting.clear()
    waits = reused_tensor(1000)
    del waits
    assert len(module._waiting) == 1
    taken = reused_tensor(wanted)
    assert len(module._waiting) == left and taken.numel() == wanted


def test_what_does_not_fit_goes_on_waiting_in_its_order():
    module._waiting.clear()
    made = [reused_tensor(size) for size in (100, 1000, 10_000)]
    del made[:]
    gc.collect()
    sizes = sorted(array.size for array in module._waiting)
    assert sizes == [100, 1000, 10_000]
    assert reused_tensor(900).numel() == 900
    gc.collect()
    assert sorted(array.size for array in module._waiting) == sizes


def test_very_large_arrays_are_given_back():
    module._waiting.clear()
    for count, kept in ((module.LARGEST // 4, 1), (module.LARGEST // 4 + 1, 1)):
        waits = reused_tensor(count)
        del waits
        gc.collect()
        assert len(module._waiting) == kept, count
    module._waiting.clear()
