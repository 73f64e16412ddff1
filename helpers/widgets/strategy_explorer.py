"""Provides StrategyExplorer: which strategy trains a model on a cluster, and why the others are worse.

A strategy is a way to train a model on many GPUs, such as ZeRO-3. Dials choose the model, the cluster and the batch;
the advice (of `advise`) has the best plan of each strategy, which one to choose, and why. The interview chapter uses
it.

Explorer, the base class, shows `sentence`, `scene` (a picture as plain data) and `rows` (a table), and computes them
anew whenever a dial changes. A ValueError in one of them becomes a message instead of the picture. A saved notebook
keeps TEXT and a picture.
"""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from helpers.draw.chapters.strategies import strategies_scene
from helpers.draw.scene import Scene
from helpers.learner.words import book, language, use_language
from helpers.predict.advice import page as advice_page
from helpers.predict.advice.advise import Advice, advise
from helpers.specs import GPUS, LINKS, PRESETS, Cluster, ModelSpec
from helpers.specs.hardware import INTRA
from helpers.widgets.controls import choice, dial
from helpers.widgets.explorer import Explorer, Rows
from helpers.widgets.memory_explorer import MODEL_NAMES

words = book("advice")  # what a reader sees, by name, in the learner's language: learner/words/advice.yaml

NETWORKS = {  # the name of a node's network -> its network cards, and the link of each, a name of LINKS
    "1 Gb/s": (1, "1 Gb/s"),
    "10 Gb/s": (1, "10 Gb/s"),
    "100 Gb/s": (1, "100 Gb/s"),
    "400 Gb/s": (1, "400 Gb/s"),
    "8 x 400 Gb/s": (8, "400 Gb/s"),
}


def network_text(name: str) -> str:
    """What the dial calls a network: its name, or the rate of all cards together."""
    return name.replace("8 x 400 Gb/s", "3.2 Tb/s")


def cluster_of(gpu: str, network: str, gpus_per_node: int, num_nodes: int) -> Cluster:
    """A cluster of a GPU (a key of GPUS) with its usual links inside a node and one of NETWORKS between nodes."""
    cards, link = NETWORKS[network]
    return Cluster(
        gpu=GPUS[gpu], gpus_per_node=gpus_per_node, num_nodes=num_nodes, intra=INTRA[gpu], inter=LINKS[link],
        network_cards=min(cards, gpus_per_node),
    )  # fmt: skip


# A link whose address holds the page itself, so that it can be downloaded without a server.
_PAGE_LINK = """<a class="rr-page" download="strategy.html" href="data:text/html;base64,{page}">{print}</a>"""


class StrategyExplorer(Explorer):
    """Which strategy trains this model on these GPUs, and why. Without a front end: `.nodes.value = 4`, then `.text`.

    model: a key of PRESETS; gpu: a key of GPUS, which also sets the links inside a node. Dials: model, gpu,
    gpus_per_node, nodes, network (of a whole node), batch (sequences of a step on all GPUs). `.advice` has every
    number. `.page(path)` writes a page to print; the link below the table downloads the same page.
    """

    TEXT = "[widget] StrategyExplorer: which strategy trains a model on a cluster, and why the others are left out"
    STYLE_SHEET = "strategy"

    def __init__(
        self, model: str = "llama3-70b", gpu: str = "H100", *, gpus_per_node: int = 8, nodes: int = 4,
        network: str = "8 x 400 Gb/s",
    ) -> None:  # fmt: skip
        # The texts named as tooltips say in a few words what each dial means.
        self.model = choice(PRESETS, model, words("dial.model"), label=MODEL_NAMES.get, tooltip=words("dial.context"))
        self.gpu = choice(tuple(GPUS), gpu, words("dial.GPU"), tooltip=words("dial.links"))
        self.gpus_per_node = dial((1, 2, 4, 8), gpus_per_node, words("dial.gpus_per_node"))
        self.nodes = dial([2**n for n in range(11)], nodes, words("dial.nodes"))
        self.network = dial(NETWORKS, network, words("dial.network"), label=network_text, tooltip=words("dial.cards"))
        self.batch = dial([2**n for n in range(15)], 512, words("dial.batch"), tooltip=words("dial.sequences"))
        for slider in (self.gpus_per_node, self.nodes, self.network, self.batch):
            slider.is_live = False  # an advice can take a second, so only where the slider is let go
        super().__init__((self.model, self.gpu, self.gpus_per_node, self.nodes, self.network, self.batch))

    @property
    def cluster(self) -> Cluster:
        """The cluster of the dials."""
        return cluster_of(self.gpu.value, self.network.value, self.gpus_per_node.value, self.nodes.value)

    @property
    def advice(self) -> Advice:
        """The advice for the dials' values. Raises ValueError where the batch cannot be divided."""
        return _cached_advice(PRESETS[self.model.value], self.cluster, self.batch.value, language())

    @property
    def scene(self) -> Scene:
        """The memory of each strategy's fullest rank, compared with the usable memory of a GPU."""
        advice = self.advice
        title = words("title", model=MODEL_NAMES[self.model.value], cluster=advice_page.cluster_name(self.cluster))
        return strategies_scene(advice.candidates, limit=advice.request.usable, limit_name=words("usable"), title=title)

    @property
    def sentence(self) -> str:
        """The choice, the rule behind it, the reason, and further remarks."""
        # "between" is what separates two sentences in the learner's language: a space in English, nothing in Chinese.
        return words("between").join((self.advice.sentence, *self.advice.remarks))

    @property
    def rows(self) -> Rows:
        """One row per strategy: the fullest rank, its traffic by link, the estimated step and the reason."""
        columns = ("strategy", "a rank", "plan", "step", "why")  # "a rank": the memory of the fullest one
        return [{advice_page.column(name): row[name] for name in columns} for row in advice_page.rows(self.advice)]

    def page(self, path: str | Path) -> Path:
        """Write the page to print. Returns its path."""
        return self.advice.page(path)

    @property
    def footer(self) -> str:
        """A link to the page to print, as HTML; "" for a batch that cannot be divided."""
        with suppress(ValueError), use_language(language()):  # looks the language up only once
            page = b64encode(advice_page.page(self.advice).encode()).decode()
            return _PAGE_LINK.format(page=page, print=words("dial.print"))
        return ""


@lru_cache(maxsize=32)  # sentence, picture, table and page all need it; lang: its texts differ by language
def _cached_advice(model: ModelSpec, cluster: Cluster, global_batch: int, lang: str) -> Advice:
    """The advice for these arguments."""
    return advise(model, cluster, global_batch=global_batch)
