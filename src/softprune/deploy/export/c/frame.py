"""What programs in float32 and in integers have in common."""

from __future__ import annotations

from dataclasses import dataclass

from softprune.deploy.export.c.network import Matrix, Network
from softprune.deploy.export.c.normalisation import Normalisation
from softprune.deploy.export.c.program import Constant, Member


@dataclass(frozen=True)
class Frame:
    """The sizes of a program and the memory between its parts.

    Attributes:
        name: what all names in C begin with.
        network: that is written.
        steps: of a window.
        normalisation: of the inputs.
        number: the type in C of an activation.
    """

    name: str
    network: Network
    steps: int
    normalisation: Normalisation | None
    number: str

    @property
    def by_step(self) -> bool:
        """Whether the program must know which sample of the window it sees."""
        return self.normalisation is not None and self.normalisation.by_step

    def members(self, *, keeps_input: bool) -> list[Member]:
        """Of the state; in-place updates need the state before, or what the thin factor of U makes of it."""
        network, number, upper = self.network, self.number, self.name.upper()
        found = [Member("h", number, "the state of the recurrence", f"{upper}_HIDDEN", network.hidden)]
        if keeps_input:
            found.append(Member("x", number, "the sample, normalised", f"{upper}_FEATURES", network.features))
        if network.w.down is not None:
            rank = len(network.w.down)
            found.append(Member("w_inner", number, "between the factors of W", str(rank), rank))
        if network.u.down is not None:
            rank = len(network.u.down)
            found.append(Member("u_inner", number, "between the factors of U", str(rank), rank))
        else:
            found.append(Member("before", number, "h before the sample", f"{upper}_HIDDEN", network.hidden))
        if self.by_step:
            found.append(Member("step", "int", "samples so far"))
        return found

    def normalising(self) -> list[Constant]:
        """The constants of the normalisation."""
        if self.normalisation is None:
            return []
        return [Constant("mean", self.normalisation.mean), Constant("inverse", self.normalisation.inverse)]

    def marks(self, members: list[Member]) -> dict[str, object]:
        """For the templates."""
        network, upper = self.network, self.name.upper()
        return {
            "name": self.name,
            "NAME": upper,
            "FEATURES": network.features,
            "STEPS": self.steps,
            "HIDDEN": network.hidden,
            "CLASSES": network.classes,
            "STATE": "\n".join(member.declaration for member in members),
            "INPUT": "as the sensor gives it"
            if self.normalisation is not None
            else "normalised as the network was trained",
            "RESET": "    state->step = 0;\n" if self.by_step else "",
            "COUNT": f"    if (state->step < {upper}_STEPS - 1) {{\n        state->step++;\n    }}\n"
            if self.by_step
            else "",
            "W_COLUMNS": network.w.up.shape[1],
            "U_COLUMNS": network.u.up.shape[1],
            "U_INPUT": "state->before" if network.u.down is None else "state->u_inner",
        }

    def normalised(self) -> tuple[str, str]:
        """Lines that find the numbers of the sample, and the sample's value i as C text."""
        if self.normalisation is None:
            return "", "x[i]"
        at = f" + (long)state->step * {self.name.upper()}_FEATURES" if self.by_step else ""
        return (
            f"    const float *shift = mean{at}, *factor = inverse{at};\n",
            "(x[i] - shift[i]) * factor[i]",
        )

    def about(self, kind: str) -> str:
        """One line on what the program is."""
        network = self.network
        return (
            f"FastGRNN in {kind}: {network.features} features, {self.steps} steps, {network.hidden} hidden units, "
            f"{network.classes} classes,\n * {_rank('W', network.w)}, {_rank('U', network.u)}, gate {network.gate}, "
            f"update {network.update}. Written by softprune."
        )


def keep_before(frame: Frame) -> str:
    """Lines that keep the state, which is then updated in place."""
    return (
        f"    for (i = 0; i < {frame.name.upper()}_HIDDEN; i++) {{\n        state->before[i] = state->h[i];\n    }}\n"
    )


def _rank(name: str, matrix: Matrix) -> str:
    return f"{name} whole" if matrix.down is None else f"{name} of rank {len(matrix.down)}"
