"""The data room: every data set as one kind of object, a ``Source`` of batches."""

from softprune.train.data.datasets import open_data, where_to_get
from softprune.train.data.source import Batch, Epoch, LoaderSource, Source

__all__ = ["Batch", "Epoch", "LoaderSource", "Source", "open_data", "where_to_get"]
