"""TensorBoard: event files in the run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from softprune.train.loggers.scalars import layer_scalars, metric_scalars
from softprune.train.observer import Beginning, Ending, Row, Silent

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


class TensorBoardLogger(Silent):
    """Writes ``tensorboard/`` into the run folder. A continued run hides what it will log again."""

    _writer: SummaryWriter

    def on_begin(self, beginning: Beginning) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard drops everything at or after the purged step that was written before now.
        self._writer = SummaryWriter(str(beginning.folder / FOLDER), purge_step=beginning.step + 1)
        if beginning.step == 0:
            lines = "".join(f"    {line}\n" for line in beginning.config.dump().splitlines())  # indented: code
            self._writer.add_text("config", lines, global_step=0)

    def on_layers(self, rows: Sequence[Row]) -> None:
        self._write(layer_scalars(rows), int(rows[0]["step"]))

    def on_metrics(self, metrics: Row) -> None:
        self._write(metric_scalars(metrics), int(metrics["step"]))
        # A checkpoint may follow, and what was logged before it is not logged again.
        self._writer.flush()

    def on_end(self, ending: Ending) -> None:
        self._writer.close()

    def _write(self, scalars: Mapping[str, float], step: int) -> None:
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, global_step=step)
