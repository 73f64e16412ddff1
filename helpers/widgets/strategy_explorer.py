"""The dials of "Which strategy?": a model, a cluster and a batch; every strategy's memory, and the one to take."""

from __future__ import annotations

from base64 import b64encode
from functools import lru_cache
from pathlib import Path

import ipywidgets

from helpers.draw.scene import Scene
from helpers.draw.strategies import strategies_scene
from helpers.learner.words import book, language
from helpers.predict.advice import page as advice_page
from helpers.predict.advice.advise import Advice, advise
from helpers.specs import GPUS, LINKS, PRESETS, Cluster, ModelSpec
from helpers.specs.hardware import INTRA
from helpers.widgets.dials import choice, dial
from helpers.widgets.explorer import Explorer, Rows
from helpers.widgets.memory_examples import NAMES

say = book("advice")

NETWORKS = {  # cards of a node, and what one carries
    "1 Gb/s": (1, "1 Gb/s"),
    "10 Gb/s": (1, "10 Gb/s"),
    "100 Gb/s": (1, "100 Gb/s"),
    "400 Gb/s": (1, "400 Gb/s"),
    "8 x 400 Gb/s": (8, "400 Gb/s"),
}


def cluster_of(gpu: str, network: str, gpus_per_node: int, num_nodes: int) -> Cluster:
    """GPUs by their key with the links they usually have, behind one of NETWORKS."""
    cards, link = NETWORKS[network]
    return Cluster(
        gpu=GPUS[gpu], gpus_per_node=gpus_per_node, num_nodes=num_nodes, intra=INTRA[gpu], inter=LINKS[link],
        network_cards=min(cards, gpus_per_node),
    )  # fmt: skip


_PAGE = """<style>
.rr-strategy .rr-table :is(td, th) {text-align: left; vertical-align: top; line-height: 1.35; white-space: nowrap}
.rr-strategy .rr-table td:is(:nth-child(3), :last-child) {white-space: normal}
.rr-strategy p[aria-live] {min-height: 5.6em !important}
.rr-page {margin: 2px 14px; font-size: 13px; text-decoration: underline}
.rr-strategy .rr-page {color: var(--jp-content-link-color, #06c)}</style>
<a class="rr-page" download="strategy.html" href="data:text/html;base64,{page}">{print}</a>"""


class StrategyExplorer(Explorer):
    """Which strategy trains this model on these GPUs, and why. Without a front end: `.nodes.value = 4`, then `.text`.

    model: a key of PRESETS; gpu: a key of GPUS, which also sets the links inside a node. Dials: model, gpu,
    gpus_per_node, nodes, network (of a whole node), batch (sequences of a step, all GPUs). `.advice` has every number,
    `.page(path)` writes the page to print, which the link below the table downloads.
    """

    TEXT = "[widget] StrategyExplorer: which strategy trains a model on a cluster, and why the others are left out"

    def __init__(
        self, model: str = "llama3-70b", gpu: str = "H100", *, gpus_per_node: int = 8, nodes: int = 4,
        network: str = "8 x 400 Gb/s",
    ) -> None:  # fmt: skip
        self.model = choice(
            [(NAMES[key], key) for key in PRESETS], model, say("dial.model"), tooltip=say("dial.context")
        )
        self.gpu = choice(tuple(GPUS), gpu, say("dial.GPU"), tooltip=say("dial.links"))
        self.gpus_per_node = dial((1, 2, 4, 8), gpus_per_node, say("dial.gpus_per_node"))
        self.nodes = dial([2**n for n in range(11)], nodes, say("dial.nodes"))
        self.network = dial(
            [(name.replace("8 x 400 Gb/s", "3.2 Tb/s"), name) for name in NETWORKS], network, say("dial.network"),
            tooltip=say("dial.cards"),
        )  # fmt: skip
        self.batch = dial([2**n for n in range(15)], 512, say("dial.batch"), tooltip=say("dial.sequences"))
        self._print = ipywidgets.HTML()
        super().__init__((self.model, self.gpu, self.gpus_per_node, self.nodes, self.network, self.batch))
        self.children = (*self.children, self._print)
        self.add_class("rr-strategy")

    @property
    def spec(self) -> ModelSpec:
        return PRESETS[self.model.value]

    @property
    def cluster(self) -> Cluster:
        """The cluster of the dials."""
        return cluster_of(self.gpu.value, self.network.value, self.gpus_per_node.value, self.nodes.value)

    @property
    def advice(self) -> Advice:
        """What `advise` finds for the dials. ValueError where the batch cannot be divided."""
        return _advised(self.spec, self.cluster, self.batch.value, language())

    @property
    def scene(self) -> Scene:
        """Every strategy's fullest rank against what a GPU may hold."""
        advice = self.advice
        title = say("title", model=NAMES[self.model.value], cluster=advice_page.cluster_name(self.cluster))
        return strategies_scene(advice.candidates, limit=advice.request.usable, limit_name=say("usable"), title=title)

    @property
    def sentence(self) -> str:
        """The choice, the rule, the reason, and what else should be known."""
        return say("between").join((self.advice.sentence, *self.advice.remarks))

    @property
    def rows(self) -> Rows:
        """The fullest rank, its traffic by link, the estimated step and the reason, a row for each strategy."""
        columns = ("strategy", "a rank", "plan", "step", "why")
        return [{advice_page.column(name): row[name] for name in columns} for row in advice_page.rows(self.advice)]

    def page(self, path: str | Path) -> Path:
        """Write the page to print; its path."""
        return self.advice.page(path)

    def _draw(self, change: object = None) -> None:
        super()._draw(change)
        try:
            page = b64encode(advice_page.page(self.advice).encode()).decode()
        except ValueError:
            self._print.value = ""
        else:
            self._print.value = _PAGE.replace("{page}", page).replace("{print}", say("dial.print"))


@lru_cache(maxsize=32)  # one setting is asked for by the sentence, the picture, the table and the page
def _advised(model: ModelSpec, cluster: Cluster, global_batch: int, lang: str) -> Advice:
    return advise(model, cluster, global_batch=global_batch)
