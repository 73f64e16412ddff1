"""The dials of chapter 07: cut a layer over ranks, and follow every number forward and backward."""

from __future__ import annotations

import ipywidgets

from helpers import costs
from helpers.draw.scene import Scene
from helpers.draw.tensor_split import tensor_split_scene
from helpers.predict.tensor_split import CUTS, FORWARD, RANKS, Pass, flops, seconds, split
from helpers.predict.tensor_split_blocks import Operation
from helpers.specs import GPUS, LINKS
from helpers.units import format_bytes, format_seconds
from helpers.widgets.dials import choice, dial
from helpers.widgets.explorer import Explorer, Rows

NAMES = {
    "mlp": "MLP: columns, then rows",
    "columns": "one matrix by columns",
    "rows": "one matrix by rows",
    "attention": "attention by heads",
    "embedding": "embedding by words",
    "head": "head and loss by words",
}
CUT_WORDS = {
    "mlp": "A is cut by columns and B by rows, so ReLU has all it needs and one sum at the end is enough.",
    "columns": "A is cut by columns: each rank has some columns of Y, which stays cut.",
    "rows": "B is cut by rows and its input by columns: each rank has a term of every number of Z.",
    "attention": "Each rank has whole heads: their columns of Wq, Wk and Wv, and their rows of Wo.",
    "embedding": "Each rank has some words of the table. Of a word it lacks it gives zeros, so the sum is the look-up.",
    "head": "Logits stay cut. Of a token its largest logit m, the sum s of exp(logit - m) and the right word's logit t "
    "are sent; its loss is log s + m - t.",
}
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
        names = [(NAMES[name], name) for name in CUTS]
        self.cut = choice(names, cut, "cut", tooltip="which layer, and how its weights are cut")
        self.ranks = dial(RANKS, ranks, "ranks", tooltip="of the tensor parallel group")
        switch = [("off", False), ("on", True)]
        tooltip = "tokens are cut between layers: an all-gather before, a reduce-scatter after"
        self.sequence = dial(switch, sequence_parallel, "sequence parallel", tooltip=tooltip)
        self.link = dial(tuple(LINKS), "NVLink 4", "link", tooltip="between any two ranks")
        hidden = [(f"{number:,}", number) for number in HIDDEN]
        self.hidden = dial(hidden, 4_096, "hidden, real size", tooltip="numbers a token, in a layer of real size")
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
        kinds = {name: ("other", taken) for name, taken in times["products"].items()}
        sent = {name: ("communication", taken) for name, taken in times["communication"].items()}
        size = f"{TOKENS:,} tokens, hidden {self.hidden.value:,}, bf16"
        title = f"{self.cut.label[0].upper()}{self.cut.label[1:]} · {self.ranks.value} ranks · {self.look.value}"
        bars = {f"products, {DEVICE}": kinds, link: sent}
        return tensor_split_scene(self.shown, title=title, bars=bars, bars_title=f"At real size: {size}")

    @property
    def sentence(self) -> str:
        """Why it is cut so, what this pass sends, and that the ranks have what one process has."""
        sent = "; ".join(map(self._said, self.shown.operations)) or "nothing"
        difference = self.shown.difference
        apart = "equal to one process" if not difference else f"equal to one process up to {difference:.0e}"
        joined = f"Joined, the ranks' results are {apart}."
        return f"{CUT_WORDS[self.cut.value]} Sent in this pass: {sent}. {joined}"

    @property
    def rows(self) -> Rows:
        """What is sent in each pass, here and in the layer of real size."""
        found = [(name, one) for name, each in self.passes.items() for one in each.operations]
        return [
            {
                "pass": name,
                "operation": f"{_word(one)} of {one.name}",
                "numbers here": str(one.count),
                "bytes at real size": format_bytes(self._bytes(one)),
                "a rank of a ring sends": format_bytes(self._sent(one)),
                "time": format_seconds(self._seconds(one)),
            }
            for name, one in found
        ]

    @property
    def _passes(self) -> tuple[str, ...]:
        return tuple(self.passes)

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
        large = f"{format_bytes(self._bytes(one))} and {format_seconds(self._seconds(one))} at real size"
        return f"{_word(one)} of {one.name}, {one.count} numbers here, {large}"


def _word(one: Operation) -> str:
    return one.op.replace("_", "-")
