"""The networks by name, for the command line. Reading the list imports no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class NetworkInfo:
    """One network: ``package.module:factory``, the shape of one input, one line about it."""

    factory: str
    example_shape: tuple[int, ...]
    summary: str


NETWORKS: dict[str, NetworkInfo] = {
    "resnet50": NetworkInfo("softprune.nn.resnet:resnet50", (1, 3, 224, 224), "ResNet50 v1.5, 1000 classes"),
    "mobilenetv1": NetworkInfo("softprune.nn.mobilenet:mobilenet_v1", (1, 3, 224, 224), "MobileNetV1, 1000 classes"),
    "resnet18": NetworkInfo("softprune.nn.resnet:resnet18", (1, 3, 32, 32), "ResNet18, CIFAR stem, 10 classes"),
    "digits": NetworkInfo("softprune.nn.digits:digits_cnn", (1, 1, 8, 8), "three convolutions, 8x8 digits, 10 classes"),
    "small_cnn": NetworkInfo("softprune.nn.small:small_cnn", (1, 1, 28, 28), "four convolutions, 28x28, 10 classes"),
    "resnet20": NetworkInfo("softprune.nn.resnet:resnet20", (1, 3, 32, 32), "ResNet20 of He et al., 10 classes"),
    "resnet56": NetworkInfo("softprune.nn.resnet:resnet56", (1, 3, 32, 32), "ResNet56 of He et al., 10 classes"),
    "fastgrnn_har2": NetworkInfo(
        "softprune.nn.fastgrnn:fastgrnn_har2", (1, 128, 9), "FastGRNN with 80 units for HAR-2, 2 classes"
    ),
    "fastgrnn_google12": NetworkInfo(
        "softprune.nn.fastgrnn:fastgrnn_google12", (1, 99, 32), "FastGRNN with 100 units for Google-12, 12 classes"
    ),
}


def example_shape(name: str, given: str | None = None) -> tuple[int, ...]:
    """The input shape of a network: as given ("1,3,224,224"), or that of the table.

    Example:
        >>> example_shape("resnet20"), example_shape("my.module:net", "1,16")
        ((1, 3, 32, 32), (1, 16))
    """
    if given is None:
        if name not in NETWORKS:
            raise ValueError(f"say what {name} takes as input, with batch 1, such as 1,3,224,224")
        return NETWORKS[name].example_shape
    sizes = [size.strip() for size in given.split(",")]
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ValueError(f"an input shape is positive numbers with commas, such as 1,3,224,224; got {given!r}")
    return tuple(int(size) for size in sizes)


def build_on_meta(name: str) -> "nn.Module":
    """A network without memory for its weights: enough to count with."""
    import torch

    with torch.device("meta"):
        return build(name)


def build(name: str, args: Mapping[str, Any] | None = None) -> "nn.Module":
    """A network: one of ``NETWORKS``, or what any ``package.module:factory`` returns for these keyword arguments.

    Example:
        >>> build("resnet20", {"num_classes": 7}).linear.out_features
        7
    """
    path = NETWORKS[name].factory if name in NETWORKS else name
    if ":" not in path:
        raise ValueError(f"no network {name!r}: choose {', '.join(NETWORKS)}, or write 'package.module:factory'")
    factory = load_factory(path)
    try:
        model = factory(**(args or {}))
    except TypeError as error:
        if not args:
            raise
        raise TypeError(f"{name!r} does not take the arguments {dict(args)}: {error}") from error

    from torch import nn

    if not isinstance(model, nn.Module):
        raise TypeError(f"{name!r} returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def load_factory(path: str) -> Callable[..., Any]:
    """The callable that ``package.module:factory`` names."""
    module_name, _, factory_name = path.partition(":")
    if not (module_name and factory_name):
        raise ValueError(f"{path!r} is not of the form package.module:factory")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that exists and imports something absent keeps its own message.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(f"{path!r}: there is no module {error.name!r}; is its folder on the Python path?") from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise ValueError(f"{path!r}: {module_name} has no callable {factory_name!r}")
    return factory
