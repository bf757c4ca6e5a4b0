"""The example on learnt ranks, short: a trained network gets smaller and keeps what it knows."""

import pytest
from examples_folder import loaded

pytest.importorskip("sklearn", reason="the digits ship with scikit-learn")


@pytest.fixture(scope="module")
def example():
    with loaded("low_rank") as module:
        yield module


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_learnt_ranks_make_a_trained_network_smaller(example, name):
    found = example.run(name, share=0.9, epochs=4, seed=0)
    assert found["learnt ranks"].parameters < 0.5 * found["trained"].parameters
    assert found["learnt ranks"].accuracy > found["trained"].accuracy - 0.1
    assert found["learnt ranks"].accuracy > 0.8


def test_splitting_changes_nothing_but_the_layers(example):
    data = example.load_digits()
    for make in example.NETWORKS.values():
        model = make().eval()
        thin = example.split(model)
        assert len(example.ranks(thin)) == 2
        example.torch.testing.assert_close(
            thin(data.test_images[:8]), model(data.test_images[:8]), rtol=1e-4, atol=1e-5
        )
