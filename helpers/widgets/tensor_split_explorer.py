"""The dials of chapter 07: cut a layer over ranks, and follow every number forward and backward."""

from __future__ import annotations

import ipywidgets

from helpers.draw.scene import Scene
from helpers.draw.tensor_parallel import tensor_split_scene
from helpers.learner.words import book
from helpers.predict.by_hand.small_matrices import Operation
from helpers.predict.by_hand.tensor_split import CUTS, FORWARD, RANKS, Pass, flops, seconds, split
from helpers.quantities import costs
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import GPUS, LINKS
from helpers.widgets.dials import choice, dial
from helpers.widgets.explorer import Explorer, Rows

say = book("tensor_split")
TOKENS, DEVICE = 8_192, "H100"
HIDDEN = (1_024, 2_048, 4_096, 8_192, 12_288, 16_384)


class TensorSplitExplorer(Explorer):
    """A layer cut over ranks, with numbers. Without a front end: `.cut.value = "attention"`, then `.text`.

    Dials: cut (a name of `predict.tensor_split.CUTS`), ranks, sequence (sequence parallelism), link (a name of
    `specs.LINKS`), hidden (of the layer of real size, 8,192 tokens). look: the pass that is shown.
    ValueError when a dial would start at an unknown value.
    """

    TEXT = "[widget] TensorSplitExplorer: a layer cut over ranks, number by number, with dials for cut, ranks and link"

    def __init__(self, cut: str = "mlp", *, ranks: int = 2, sequence_parallel: bool = False) -> None:
        names = [(say(f"name.{name}"), name) for name in CUTS]
        self.cut = choice(names, cut, say("cut"), tooltip=say("which"))
        self.ranks = dial(RANKS, ranks, say("ranks"), tooltip=say("group"))
        switch = [(say(f"switch.{on}"), on) for on in (False, True)]
        self.sequence = dial(switch, sequence_parallel, say("sequence"), tooltip=say("tokens"))
        self.link = dial(tuple(LINKS), "NVLink 4", say("link"), tooltip=say("between"))
        hidden = [(f"{number:,}", number) for number in HIDDEN]
        self.hidden = dial(hidden, 4_096, say("hidden"), tooltip=say("numbers"))
        self.look = ipywidgets.ToggleButtons(options=self._passes, layout=ipywidgets.Layout(margin="4px 12px"))
        self.look.style.button_width = "150px"
        self.cut.observe(self._offer_passes, names="value")
        self.look.observe(self._draw, names="value")
        super().__init__((self.cut, self.ranks, self.sequence, self.link, self.hidden), controls=[self.look])

    @property
    def passes(self) -> dict[str, Pass]:
        """All passes of the dials as they stand."""
        return split(self.cut.value, self.ranks.value, self.sequence.value)

    @property
    def shown(self) -> Pass:
        """The pass that is drawn."""
        return self.passes[self.look.value]

    @property
    def times(self) -> dict[str, dict[str, float]]:
        """Seconds of the layer of real size: "products" and "communication", each by pass."""
        size = TOKENS, self.hidden.value
        products = flops(self.cut.value, self.ranks.value, *size) / GPUS[DEVICE].flops
        link = LINKS[self.link.value]
        return {
            "products": dict.fromkeys(self.passes, products),
            "communication": {name: seconds(one, *size, link) for name, one in self.passes.items()},
        }

    @property
    def scene(self) -> Scene:
        """The picture of the dials as they stand."""
        times, link = self.times, self.link.value
        kinds = {say(f"pass.{name}"): ("other", taken) for name, taken in times["products"].items()}
        sent = {say(f"pass.{name}"): ("communication", taken) for name, taken in times["communication"].items()}
        cut = say(f"name.{self.cut.value}")
        look = {"ranks": self.ranks.value, "look": say(f"pass.{self.look.value}")}
        title = say("title", cut=f"{cut[0].upper()}{cut[1:]}", **look)
        bars = {say("products", device=DEVICE): kinds, link: sent}
        bars_title = say("bars", tokens=TOKENS, hidden=self.hidden.value)
        return tensor_split_scene(self.shown, title=title, bars=bars, bars_title=bars_title)

    @property
    def sentence(self) -> str:
        """Why it is cut so, what this pass sends, and that the ranks have what one process has."""
        sent = [self._said(one) for one in self.shown.operations] or [say("nothing")]
        apart = say("apart" if self.shown.difference else "equal", difference=self.shown.difference)
        return say("sentence", why=say(f"why.{self.cut.value}"), sent=sent, apart=apart)

    @property
    def rows(self) -> Rows:
        """What is sent in each pass, here and in the layer of real size."""
        found = [(name, one) for name, each in self.passes.items() for one in each.operations]
        return [
            {
                say("column.pass"): say(f"pass.{name}"),
                say("column.operation"): say("operation", op=_word(one), name=one.name),
                say("column.here"): str(one.count),
                say("column.bytes"): format_bytes(self._bytes(one)),
                say("column.sends"): format_bytes(self._sent(one)),
                say("column.time"): format_seconds(self._seconds(one)),
            }
            for name, one in found
        ]

    @property
    def _passes(self) -> tuple[tuple[str, str], ...]:
        return tuple((say(f"pass.{name}"), name) for name in self.passes)

    def _offer_passes(self, change: object) -> None:
        """The pass stays where the new cut has it: an embedding has no gradient of its input."""
        if self._passes != self.look.options:
            keep = self.look.value if self.look.value in self.passes else FORWARD
            self.look.options = self._passes
            self.look.value = keep

    def _bytes(self, one: Operation) -> int:
        return one.num_bytes(TOKENS, self.hidden.value)

    def _sent(self, one: Operation) -> float:
        return costs.sent_bytes(one.op, self._bytes(one), self.ranks.value)

    def _seconds(self, one: Operation) -> float:
        return costs.seconds(one.op, self._bytes(one), self.ranks.value, LINKS[self.link.value])

    def _said(self, one: Operation) -> str:
        large = {"size": format_bytes(self._bytes(one)), "time": format_seconds(self._seconds(one))}
        return say("said", op=_word(one), name=one.name, count=one.count, **large)


def _word(one: Operation) -> str:
    return one.op.replace("_", "-")
