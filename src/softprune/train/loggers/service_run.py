"""A run as a service knows it, which cannot forget what it was told."""

from __future__ import annotations

import json
from pathlib import Path

from softprune.budget.files import parse_json, read_text, require_format, write_text
from softprune.train.observer import Beginning

FORMAT, VERSION = "softprune-service-run", 1


class ServiceRun:
    """Which run of a service belongs to a run folder, and which lines of metrics.jsonl it has.

    A continued run logs again what came after its checkpoint, the same values bit for bit. Lines that the service has
    are passed over, so that each is there once.

    Args:
        file: in the run folder, where this is remembered.
        beginning: of the run, or of its continuation.
    """

    def __init__(self, file: Path, beginning: Beginning) -> None:
        self._file = file
        self.id: str | None = None
        self.line = beginning.kept
        self._sent = 0
        if file.is_file():
            remembered = parse_json(read_text(file), str(file))
            require_format(remembered, FORMAT, version=VERSION, origin=str(file))
            self.id = remembered["id"]
            self._sent = max(beginning.logged, remembered["sent"])

    def remember(self, run_id: str) -> None:
        """Write down the run's id in the service. Once is enough: lines that follow are counted by metrics.jsonl."""
        self.id = run_id
        facts = {"format": FORMAT, "version": VERSION, "id": run_id, "sent": self._sent}
        write_text(self._file, json.dumps(facts, indent=2) + "\n")

    def is_news(self) -> bool:
        """Count the next line; whether the service does not have it yet."""
        self.line += 1
        return self.line > self._sent
