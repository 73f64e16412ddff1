"""Turn tokens, experts, k, capacity, skew, ranks and node limit of an expert layer, and see its load, drops and bytes.

How many tokens choose an expert follows from the skew, and what a token sends is counted for tokens that are drawn at
random. The layer has the sizes of DeepSeek-V3's experts
in 16 bits on H800 nodes of 8 GPUs. Times are those of the forward pass, without latencies.

Explorer, the base class, shows `sentence`, `scene` (a picture as plain data) and `rows` (a table), and computes them
anew whenever a dial changes. A ValueError in one of them becomes a message instead of the picture.
"""

from __future__ import annotations

from functools import lru_cache

from helpers.draw import Part, Scene, parts_scene
from helpers.draw.chapters.experts import expert_load_scene
from helpers.draw.scene import stacked_scene
from helpers.learner.words import book
from helpers.predict.traffic.expert_messages import crossings
from helpers.predict.traffic.expert_parallel import capacity
from helpers.predict.traffic.expert_routing import chosen_shares, drawn_choices
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import GPUS, LINKS, ROUTED
from helpers.specs.hardware import COMPUTE_SHARE
from helpers.widgets.controls import dial
from helpers.widgets.explorer import Explorer, Rows

words = book("experts").section("explorer")  # what a reader sees, in the learner's language: learner/words/experts.yaml
SIZES = ROUTED["deepseek-v3"]  # of an expert
DRAWN, GPUS_PER_NODE, ROW_BYTES = 256, 8, 2 * SIZES.hidden  # tokens that are drawn; bytes of a token's row in 16 bits
NETWORK, NVLINK, PEAK = LINKS["400 Gb/s"], LINKS["NVLink 4, H800"], GPUS["H800"].flops


class ExpertsExplorer(Explorer):
    """Load, dropped rows and bytes of an expert layer. Without a front end: `.skew.value = 1.0`, then `.text`.

    `.load` is the rows of each expert from all ranks, `.dropped` the share of rows beyond the capacity, `.seconds` what
    the parts of a forward pass take. factor: of the capacity, None for dropless. limit: nodes of a token, None for all.
    """

    TEXT = "[widget] ExpertsExplorer: load, dropped rows and bytes of an expert layer, with dials for routing and ranks"

    def __init__(self, *, tokens: int = 4096, experts: int = 64, k: int = 6, skew: float = 0.25, ep: int = 64) -> None:
        self.tokens = dial((1024, 2048, 4096, 8192), tokens, words("tokens"), label="{:,}".format, tooltip=words("own"))
        self.experts = dial((8, 16, 32, 64, 128, 256), experts, words("experts"), tooltip=words("of_layer"))
        self.k = dial((1, 2, 4, 6, 8), k, "k", tooltip=words("chosen"))
        self.skew = dial((0.0, 0.25, 0.5, 0.75, 1.0), skew, words("skew"), tooltip=words("popularity"))
        self.factor = dial(
            [(words("dropless"), None), *((f"{factor:g}", factor) for factor in (1.0, 1.25, 1.5, 2.0))], None,
            words("capacity"), tooltip=words("factor"),
        )  # fmt: skip
        self.ep = dial((1, 2, 4, 8, 16, 32, 64), ep, "EP", tooltip=words("ranks"))
        self.limit = dial([(words("none"), None), *((str(n), n) for n in (1, 2, 3, 4))], None, words("limit"))
        super().__init__((self.tokens, self.experts, self.k, self.skew, self.factor, self.ep, self.limit))

    @property
    def nodes(self) -> int:
        return max(1, self.ep.value // GPUS_PER_NODE)

    @property
    def load(self) -> list[float]:
        """The rows of each expert. Raises ValueError where the dials do not fit together."""
        if self.experts.value % self.ep.value:
            raise ValueError(words("too_few", experts=self.experts.value, ep=self.ep.value))
        shares = chosen_shares(num_experts=self.experts.value, top_k=self.k.value, skew=self.skew.value)
        return [share * self.tokens.value * self.ep.value for share in shares]

    @property
    def capacity(self) -> float | None:
        """The rows that an expert takes, None without a limit."""
        all_tokens, sizes = self.tokens.value * self.ep.value, (self.experts.value, self.k.value)
        if self.factor.value is None:
            return None
        return capacity(tokens=all_tokens, num_experts=sizes[0], top_k=sizes[1], factor=self.factor.value)

    @property
    def kept(self) -> list[float]:
        """The rows that each expert computes."""
        most = self.capacity
        return self.load if most is None else [min(rows, most) for rows in self.load]

    @property
    def dropped(self) -> float:
        """The share of rows that no expert computes."""
        return 1 - sum(self.kept) / sum(self.load)

    @property
    def by_rank(self) -> list[float]:
        """The rows that each rank computes."""
        kept, share = self.kept, self.experts.value // self.ep.value
        return [sum(kept[rank * share : (rank + 1) * share]) for rank in range(self.ep.value)]

    def copies(self, *, deduplicated: bool) -> float:
        """How often a token crosses to another node on average, over tokens of all nodes, before any are dropped."""
        routing = (self.experts.value, self.k.value, self.skew.value, self.nodes, self.limit.value)
        return _copies(*routing, deduplicated)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of the products on the busiest and on a mean rank, and of dispatch with combine on each link."""
        row = 2 * 3 * SIZES.hidden * SIZES.ffn / (COMPUTE_SHARE * PEAK)  # three matrices, two operations per element
        both = 2 * self.tokens.value * ROW_BYTES  # dispatch and combine, if each token were sent once
        on_node, by_rank = min(self.ep.value, GPUS_PER_NODE), self.by_rank
        return {
            "busiest": max(by_rank) * row,
            "mean": sum(by_rank) / len(by_rank) * row,
            "copies": both * self.copies(deduplicated=False) / NETWORK.bandwidth,
            "nodes": both * self.copies(deduplicated=True) / NETWORK.bandwidth,
            "nvlink": both * self.k.value * (1 - 1 / on_node) / NVLINK.bandwidth,
        }

    @property
    def bottleneck(self) -> str:
        """The longest part, if tokens are copied on the node that they reach: "busiest", "nodes" or "nvlink"."""
        seconds = self.seconds
        return max(("busiest", "nodes", "nvlink"), key=seconds.get)

    @property
    def scene(self) -> Scene:
        kinds = {"busiest": "forward", "mean": "forward", "copies": "communication", "nodes": "communication"}
        rows, ends = {}, {}
        for name, seconds in self.seconds.items():
            rows[words(f"part.{name}")] = [Part(text="", kind=kinds.get(name, "buffers"), size=seconds)]
            ends[words(f"part.{name}")] = format_seconds(seconds)
        title = words("title", experts=self.experts.value, k=self.k.value, ep=self.ep.value, tokens=self.tokens.value)
        bars = expert_load_scene(self.load, title=title, ranks=self.ep.value, capacity=self.capacity)
        return stacked_scene(bars, parts_scene(rows, ends=ends, title=words("times")), title=title)

    @property
    def sentence(self) -> str:
        load = self.load
        copies, nodes = (self.copies(deduplicated=each) for each in (False, True))
        return words(
            "sentence", times=max(load) / sum(load) * len(load), dropped=self.dropped, copies=copies, nodes=nodes,
            bottleneck=words(f"part.{self.bottleneck}"),
        )  # fmt: skip

    @property
    def rows(self) -> Rows:
        sent = {name: 2 * self.tokens.value * ROW_BYTES * self.copies(deduplicated=name == "nodes")
                for name in ("copies", "nodes")}  # fmt: skip
        return [
            {
                words("column.part"): words(f"part.{name}"),
                words("column.bytes"): format_bytes(sent[name]) if name in sent else "",
                words("column.time"): format_seconds(seconds),
            }
            for name, seconds in self.seconds.items()
        ]


@lru_cache(maxsize=64)
def _copies(num_experts: int, top_k: int, skew: float, nodes: int, limit: int | None, deduplicated: bool) -> float:
    """How often a token crosses to another node on average, counted for some tokens on each node."""
    sizes = dict(num_experts=num_experts, top_k=top_k, nodes=nodes)
    chosen = drawn_choices(tokens=DRAWN, skew=skew, max_nodes=limit, **sizes)
    options = dict(experts_per_node=num_experts // nodes, deduplicated=deduplicated)
    return sum(crossings(chosen, node=node, **options) for node in range(nodes)) / nodes / DRAWN
