"""Provides TensorSplitExplorer, which splits a small layer over ranks and shows every number forward and backward.

It shows what tensor and sequence parallelism send, and how long that takes for a large layer. Chapter 07 uses it.

Explorer, the base class, shows `sentence`, `scene` (a picture as plain data) and `rows` (a table), and computes them
anew whenever a dial changes. A ValueError in one of them becomes a message instead of the picture. A saved notebook
keeps TEXT and a picture.
"""

from __future__ import annotations

from helpers.draw.chapters.tensor_parallel import tensor_split_scene
from helpers.draw.scene import Scene
from helpers.learner.words import book
from helpers.predict.by_hand.tensor_split import CUTS, FORWARD, RANKS, Operation, Pass, flops, seconds, split
from helpers.quantities import costs
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import GPUS, LINKS
from helpers.widgets.controls import Control, Dial, choice, dial
from helpers.widgets.explorer import Explorer, Rows

words = book("tensor_split")  # what a reader sees, by name, in the learner's language: learner/words/tensor_split.yaml
TOKENS, DEVICE = 8_192, "H100"  # of the layer of real size
HIDDEN = (1_024, 2_048, 4_096, 8_192, 12_288, 16_384)


class TensorSplitExplorer(Explorer):
    """A layer split over ranks, with numbers.

    A pass is the forward, or one half of the backward, over the small layer. Without a front end:
    `.cut.value = "attention"`, then `.text`.

    Dials: cut (the kind of layer, such as "mlp", which also decides how it is split; a name of CUTS), ranks, sequence
    (sequence parallelism), link (a name of `specs.LINKS`), hidden (of the layer of real size, 8,192 tokens). look: the
    pass that is shown.
    Raises ValueError for an unknown starting value.
    """

    TEXT = "[widget] TensorSplitExplorer: a layer sharded over ranks, by elements, with dials for split, ranks and link"

    def __init__(self, cut: str = "mlp", *, ranks: int = 2, sequence_parallel: bool = False) -> None:
        # The texts named as tooltips say in a few words what each dial means.
        names = [(words(f"name.{name}"), name) for name in CUTS]
        self.cut = choice(names, cut, words("cut"), tooltip=words("which"))
        self.ranks = dial(RANKS, ranks, words("ranks"), tooltip=words("group"))
        switch = [(words(f"switch.{on}"), on) for on in (False, True)]  # off, on
        self.sequence = dial(switch, sequence_parallel, words("sequence"), tooltip=words("tokens"))
        self.link = dial(tuple(LINKS), "NVLink 4", words("link"), tooltip=words("between"))
        self.hidden = dial(HIDDEN, 4_096, words("hidden"), label="{:,}".format, tooltip=words("numbers"))
        self.look = Dial(self._pass_options, FORWARD, style="buttons")
        self.cut.observe(self._offer_passes)
        super().__init__((self.cut, self.ranks, self.sequence, self.link, self.hidden), controls=[self.look])

    @property
    def passes(self) -> dict[str, Pass]:
        """All passes for the dials' values."""
        return split(self.cut.value, self.ranks.value, self.sequence.value)

    @property
    def shown_pass(self) -> Pass:
        """The pass that is drawn."""
        return self.passes[self.look.value]

    @property
    def times(self) -> dict[str, dict[str, float]]:
        """Seconds that a layer of real size takes for matrix products and for communication, by pass."""
        size = TOKENS, self.hidden.value
        products = flops(self.cut.value, self.ranks.value, *size) / GPUS[DEVICE].flops
        link = LINKS[self.link.value]
        return {
            "products": dict.fromkeys(self.passes, products),
            "communication": {name: seconds(each, *size, link) for name, each in self.passes.items()},
        }

    @property
    def scene(self) -> Scene:
        """The matrices of the pass, and below them the times of the layer of real size."""
        times, link = self.times, self.link.value
        # For each pass its kind of the palette, which is its colour, and its seconds.
        computed = {words(f"pass.{name}"): ("other", taken) for name, taken in times["products"].items()}
        sent = {words(f"pass.{name}"): ("communication", taken) for name, taken in times["communication"].items()}
        cut = words(f"name.{self.cut.value}")
        pass_name = {"ranks": self.ranks.value, "look": words(f"pass.{self.look.value}")}
        title = words("title", cut=f"{cut[0].upper()}{cut[1:]}", **pass_name)
        bars = {words("products", device=DEVICE): computed, link: sent}
        bars_title = words("bars", tokens=TOKENS, hidden=self.hidden.value)
        return tensor_split_scene(self.shown_pass, title=title, bars=bars, bars_title=bars_title)

    @property
    def sentence(self) -> str:
        """Why the layer is split so, what this pass sends, and how far the ranks differ from one process."""
        sent = [self._operation_text(each) for each in self.shown_pass.operations] or [words("nothing")]
        difference = words("apart" if self.shown_pass.difference else "equal", difference=self.shown_pass.difference)
        # apart: how far the ranks are from one process.
        return words("sentence", why=words(f"why.{self.cut.value}"), sent=sent, apart=difference)

    @property
    def rows(self) -> Rows:
        """One row per collective of each pass, with its bytes here and in the layer of real size."""
        operations = [(name, operation) for name, each in self.passes.items() for operation in each.operations]
        return [
            {
                words("column.pass"): words(f"pass.{name}"),
                words("column.operation"): words("operation", op=_operation_name(operation), name=operation.name),
                words("column.here"): str(operation.count),
                words("column.bytes"): format_bytes(self._bytes(operation)),
                words("column.sends"): format_bytes(self._sent(operation)),
                words("column.time"): format_seconds(self._seconds(operation)),
            }
            for name, operation in operations
        ]

    @property
    def _pass_options(self) -> tuple[tuple[str, str], ...]:
        """The passes of the layer, by their names in words."""
        return tuple((words(f"pass.{name}"), name) for name in self.passes)

    def _offer_passes(self, turned: Control) -> None:
        """Offer the new layer's passes and keep the current one if possible. An embedding has no input gradient."""
        self.look.offer(self._pass_options, self.look.value if self.look.value in self.passes else FORWARD)

    def _bytes(self, operation: Operation) -> int:
        """The bytes of a collective in the layer of real size."""
        return operation.num_bytes(TOKENS, self.hidden.value)

    def _sent(self, operation: Operation) -> float:
        """The bytes that a rank sends in a collective."""
        return costs.sent_bytes(operation.op, self._bytes(operation), self.ranks.value)

    def _seconds(self, operation: Operation) -> float:
        """The seconds that a collective takes on the link."""
        return costs.seconds(operation.op, self._bytes(operation), self.ranks.value, LINKS[self.link.value])

    def _operation_text(self, operation: Operation) -> str:
        """A collective with its numbers, bytes and time, in words."""
        large = {"size": format_bytes(self._bytes(operation)), "time": format_seconds(self._seconds(operation))}
        return words("said", op=_operation_name(operation), name=operation.name, count=operation.count, **large)


def _operation_name(operation: Operation) -> str:
    """The name of a collective as people write it, such as "all-reduce"."""
    return operation.op.replace("_", "-")
