"""A small convolutional network for 28x28 images in one channel, such as MNIST and Fashion-MNIST."""

from torch import nn

from softprune.nn.digits import conv_block


def small_cnn(num_classes: int = 10) -> nn.Module:
    """Four convolutions with batch norm and two linear layers: 261,392 weights and 3,926,912 multiply-adds."""
    return nn.Sequential(
        *conv_block(1, 16),
        nn.MaxPool2d(2),
        *conv_block(16, 32),
        nn.MaxPool2d(2),
        *conv_block(32, 64),
        *conv_block(64, 64),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 64),
        nn.ReLU(),
        nn.Linear(64, num_classes),
    )
