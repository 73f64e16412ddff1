"""Turn tokens, experts, k, capacity, skew, ranks and node limit of an expert layer, and see its load, drops and bytes.

How many tokens choose an expert follows from the skew, and to which nodes a token goes is counted for tokens that are
drawn at random. The experts have the sizes of a published model, in 16 bits, on nodes of 8 H100s. Times are those of
the forward pass on the busiest GPU, without latencies.

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
# h and f of an expert. DeepSeekMoE 16B: its published configuration (Dai et al. 2024).
SIZES = {
    "DeepSeekMoE 16B": (2048, 1408),
    "DeepSeek-V3": (ROUTED["deepseek-v3"].hidden, ROUTED["deepseek-v3"].ffn),
}
DRAWN, GPUS_PER_NODE = 256, 8  # DRAWN: tokens that are drawn
NETWORK, NVLINK, PEAK = LINKS["400 Gb/s"], LINKS["NVLink 4"], GPUS["H100"].flops


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
        self.sizes = dial(list(SIZES), "DeepSeekMoE 16B", words("sizes"), tooltip=words("of_an_expert"))
        super().__init__((self.sizes, self.tokens, self.experts, self.k, self.skew, self.factor, self.ep, self.limit))

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
        if self.factor.value is None:
            return None
        sizes = dict(num_experts=self.experts.value, top_k=self.k.value)
        return capacity(tokens=self.tokens.value * self.ep.value, factor=self.factor.value, **sizes)

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
        return _copies(*self._routing, deduplicated)

    @property
    def _routing(self) -> tuple[int, int, float, int, int | None]:
        """What decides to which nodes tokens go: experts, k, skew, nodes and limit."""
        return self.experts.value, self.k.value, self.skew.value, self.nodes, self.limit.value

    @property
    def message_bytes(self) -> dict[str, float]:
        """Bytes of dispatch and combine that the busiest GPU sends or receives, whichever are more.

        "copies" and "nodes": to or from other nodes, with a copy per expert and with a copy per node, which goes to the
        GPU with the sender's number in its node. "nvlink": the rows that its experts get from GPUs of its own node.
        """
        row = 2 * 2 * SIZES[self.sizes.value][0]  # dispatch and combine, two bytes per element
        received, sent = max(self.by_rank), self.tokens.value * self.copies(deduplicated=False)
        on_node = min(self.ep.value, GPUS_PER_NODE)
        return {
            "copies": row * max(sent, received * (1 - 1 / self.nodes)),
            "nodes": row * self.tokens.value * _busiest_node(*self._routing),
            "nvlink": row * received * (1 - 1 / on_node),
        }

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of the products on the busiest and on a mean rank, and of each of `message_bytes`."""
        hidden, ffn = SIZES[self.sizes.value]
        row = 2 * 3 * hidden * ffn / (COMPUTE_SHARE * PEAK)  # three matrices, two operations per element
        by_rank, sent = self.by_rank, self.message_bytes
        return {
            "busiest": max(by_rank) * row,
            "mean": sum(by_rank) / len(by_rank) * row,
            "copies": sent["copies"] / NETWORK.bandwidth,
            "nodes": sent["nodes"] / NETWORK.bandwidth,
            "nvlink": sent["nvlink"] / NVLINK.bandwidth,
        }

    def longest(self, *, deduplicated: bool) -> str:
        """The part that takes longest, if a token has a copy per node or per expert: its name in `seconds`."""
        seconds = self.seconds
        return max(("busiest", "nodes" if deduplicated else "copies", "nvlink"), key=seconds.get)

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
            longest=words(f"longest.{self.longest(deduplicated=False)}"),
            deduplicated=words(f"longest.{self.longest(deduplicated=True)}"),
        )  # fmt: skip

    @property
    def rows(self) -> Rows:
        sent = self.message_bytes
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


@lru_cache(maxsize=64)
def _busiest_node(num_experts: int, top_k: int, skew: float, nodes: int, limit: int | None) -> float:
    """Copies on the busiest network card for each token of a GPU, with a copy per node; sent or received, the larger.

    `met` is for each node the share of the tokens that have an expert there. All nodes send with the same shares.
    """
    chosen = drawn_choices(tokens=DRAWN, num_experts=num_experts, top_k=top_k, nodes=nodes, skew=skew, max_nodes=limit)
    targets = [{expert // (num_experts // nodes) for expert in experts} for experts in chosen]
    met = [sum(node in each for each in targets) / DRAWN for node in range(nodes)]
    return max(max((nodes - 1) * share, sum(met) - share) for share in met)
