"""Random structures: whatever is stacked, integers compute nearly what PyTorch computes, in reference and kernels."""

import warnings

import torch
from exported_networks import assert_equal_outputs, computed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_export_random import networks

import softprune
from softprune.deploy.engine.inference import KernelWarning


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(networks(), st.integers(1, 9))
def test_random_networks_in_integers(drawn, batch):
    module, height, width = drawn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KernelWarning)
        quantised = softprune.quantize(module, [torch.randn(16, 3, height, width) for _ in range(2)])
        x = torch.randn(batch, 3, height, width)
        found = quantised(x)
    with torch.no_grad():
        wanted = module(x)
    assert (found - wanted).square().sum() <= 0.05 * wanted.square().sum()
    # Floats between the integers may round otherwise, and move a byte to the next one.
    assert_equal_outputs(computed(quantised.graph.document, quantised.graph.weights, x), found, tolerance=0.02)
