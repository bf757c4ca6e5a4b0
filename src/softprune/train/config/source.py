"""Where the network and the data come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from softprune.nn.catalog import NETWORKS
from softprune.train.config.problem import unknown_choice
from softprune.train.config.section import Count, Named, is_factory

DATASETS = ("digits", "mnist", "fashion-mnist", "cifar10", "image-folder", "har2", "google12")
_OWN = ", nor package.module:factory"


class ModelConfig(Named):
    """The network."""

    name: str = Field(description="A network of softprune.nn.catalog, or package.module:factory of your own.")
    args: dict[str, Any] = Field(default={}, description="Keyword arguments of the factory, such as num_classes.")
    weights: str | None = Field(
        default=None,
        description="Trained weights to begin with: a safetensors file, a state dict that torch.save wrote, or a run "
        "folder; null begins with random ones.",
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in NETWORKS and not is_factory(name):
            raise ValueError(unknown_choice(name, list(NETWORKS), also=_OWN))
        return name


class DataConfig(Named):
    """The data."""

    name: str = Field(description=f"One of {', '.join(DATASETS)}, or package.module:factory of your own.")
    root: str | None = Field(
        default=None,
        description="Folder that holds the files; null looks in ./data and where the system installs them.",
    )
    augment: bool = Field(
        default=True,
        description="Change training images at random in the way that suits the data set, such as crops and flips; "
        "false also turns rotate and shift off.",
    )
    normalise: Literal["own", "imagenet"] = Field(
        default="own",
        description="Mean and deviation that pixels are normalised with: the data set's own, or imagenet's, which "
        "many trained networks expect (cifar10).",
    )
    subset: Count | None = Field(
        default=None, description="Train on this many images only, classes balanced; null for all."
    )
    workers: int = Field(
        default=0, ge=0, description="Processes that decode an image-folder; 0 decodes in the training process."
    )
    image_size: Count = Field(default=224, description="Side of the square images of image-folder.")

    rotate: Annotated[float, Field(ge=0, le=180)] = Field(
        default=0.0,
        description="Turn the signals of each training window by up to so many degrees about a random axis (har2).",
    )
    shift: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Move each training sequence by up to so many steps in time (har2, google12)."
    )
    held: Literal["test", "validation"] = Field(
        default="test",
        description="What is tested on: the official test samples, or a part of the training samples with subjects or "
        "speakers of its own (har2, google12), to choose settings with.",
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in DATASETS and not is_factory(name):
            raise ValueError(unknown_choice(name, DATASETS, also=_OWN))
        return name
