"""Provides LongContextExplorer: a ring, an all-gather and Ulysses side by side, for one layer's attention.

Dials choose the model, the length of a sequence, the ranks that share it, their GPU and their link. The picture has the
seconds of each method, the bytes that a rank sends, and the bytes that it holds. Chapter 13 uses it.

Explorer, the base class, shows `sentence`, `scene` (a picture as plain data) and `rows` (a table), and computes them
anew whenever a dial changes. A saved notebook keeps TEXT and a picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from helpers.draw.palette import kind_style
from helpers.draw.rows import BarRow, BarStyle, Part, rows_scene
from helpers.draw.scene import Scene, stacked_scene
from helpers.learner.words import book
from helpers.predict.time.long_context import AttentionCost, attention_cost, ulysses_refusal
from helpers.predict.time.stacks import MEGATRON_CORE
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import GPUS, LINKS, PRESETS
from helpers.widgets.controls import Control, choice, dial
from helpers.widgets.explorer import Explorer, Rows
from helpers.widgets.memory_explorer import MODEL_NAMES

MODELS = ("llama2-7b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3-405b", "gpt3-175b")
LENGTHS = tuple(2**n for n in range(13, 21))  # 8k to 1M tokens
RANKS = (2, 4, 8, 16, 32, 64)
CHIPS = ("A100", "H100", "H200", "B200")
# For each method its name in Plan, whether it has a zigzag, and the share of its messages that can travel while the
# rank computes: all of a ring's, and none of Llama 3's all-gather, which ends before attention begins.
WAYS = {
    "zigzag": ("ring", True, 1.0), "contiguous": ("ring", False, 1.0), "all_gather": ("all_gather", True, 0.0),
    "ulysses": ("all_to_all", True, 0.0),
}  # fmt: skip
BLOCK_SPEED = MEGATRON_CORE.context_flash  # of attention in a ring's blocks, over its speed in one call
STYLE = BarStyle(height=20, pitch=27, above=2, radius=2)
words = book("long_context")  # the texts that are shown, by name: learner/words/long_context.yaml


class LongContextExplorer(Explorer):
    """Context parallelism in one layer. Without a front end: `.ranks.value = 16`, then `.text`.

    model: a key of PRESETS. Dials: model, seq (tokens), ranks, gpu, link (a key of LINKS, from each rank to the next).
    `.ways` has each method's AttentionCost, forward and backward; Ulysses has None where it cannot share the heads.
    """

    TEXT = "[widget] LongContextExplorer: ring, all-gather and Ulysses, with dials for model, tokens, ranks and link"

    def __init__(self, model: str = "llama3-8b", *, seq: int = 131_072, ranks: int = 8, link: str = "400 Gb/s") -> None:
        self.model = choice(MODELS, model, words("model"), label=_name_with_heads, tooltip=words("heads"))
        self.seq = dial(LENGTHS, seq, words("seq"), label="{:,}".format, tooltip=words("length"))
        self.ranks = dial(RANKS, ranks, words("ranks"), tooltip=words("share"))
        self.gpu = choice(CHIPS, "H100", words("gpu"), tooltip=words("computes"))
        self.link = dial(tuple(LINKS), link, words("link"), tooltip=words("next"))
        self._turned = 2  # the place among the dials of the one that moved last, of which the sentence speaks
        super().__init__((self.model, self.seq, self.ranks, self.gpu, self.link))

    def _draw(self, turned: Control | None = None) -> None:
        """First remember which dial moved."""
        self._turned = self.dials.index(turned) if turned else self._turned
        super()._draw(turned)

    @property
    def ways(self) -> dict[str, AttentionCost | None]:
        """What each method takes with the dials' values."""
        return _ways(*(each.value for each in self.dials))

    @property
    def scene(self) -> Scene:
        """Three groups of bars: seconds, bytes sent and bytes held."""
        shown = {"tokens": self.seq.label, "ranks": self.ranks.value, "gpu": self.gpu.value, "link": self.link.value}
        title = words("title", model=MODEL_NAMES[self.model.value], **shown)
        panels = [
            self._panel(title, _seconds_by_kind, _time_text),
            self._panel(words("sent"), lambda way: {"communication": way.sent}, lambda way: format_bytes(way.sent)),
            self._panel(words("held"), _held_by_kind, lambda way: format_bytes(way.held)),
        ]
        return stacked_scene(*panels, title=title)

    def _panel(self, title: str, sizes_of: Callable[[AttentionCost], dict[str, float]], text_of: Callable) -> Scene:
        """A row for each method, with the parts of `sizes_of` and `text_of` at its end."""
        sizes = {name: sizes_of(way) for name, way in self.ways.items() if way}
        longest = max(sum(each.values()) for each in sizes.values())
        rows = []
        for name, way in self.ways.items():
            parts, end = [Part(text=self._refusal, kind="other", size=longest)], "–"  # grey, with the reason
            if way:
                parts, end = [_part(kind, size) for kind, size in sizes[name].items()], text_of(way)
            rows.append(BarRow(name=words(name), parts=parts, end=end, is_chosen=name == _fastest(self.ways)))
        legend = [(_part_text(kind), kind_style(kind)) for kind in sizes["zigzag"]]
        summary = " ".join(f"{row.name}: {row.end}." for row in rows)
        return rows_scene(rows, STYLE, title=title, legend=legend if len(legend) > 1 else (), summary=summary)

    @property
    def _refusal(self) -> str:
        return words("cannot", ranks=self.ranks.value, heads=PRESETS[self.model.value].num_heads)

    @property
    def sentence(self) -> str:
        """The fastest method, its bottleneck, where the dial that moved last changes it, and the limit of Ulysses."""
        ways, fastest = self.ways, _fastest(self.ways)
        best, spec = ways[fastest], PRESETS[self.model.value]
        is_computing = best.compute >= best.exposed
        values = {"what": words("computing" if is_computing else "exposing"), "seconds": format_seconds(best.seconds)}
        share = max(best.compute, best.exposed) / best.seconds
        most = max(ranks for ranks in RANKS if not ulysses_refusal(spec, ranks))
        limit = "" if most == RANKS[-1] else words("limit", most=most, heads=spec.num_heads)
        return words(
            "sentence", way=words(f"named.{fastest}"), share=share, change=self._change(fastest), limit=limit, **values
        )

    def _change(self, fastest: str) -> str:
        """The nearest value of the dial that moved last with which another method is the fastest."""
        moved = self.dials[self._turned]
        for text, value in sorted(moved.options, key=lambda option: abs(moved.options.index(option) - moved.index)):
            other = _fastest(_ways(*(value if each is moved else each.value for each in self.dials)))
            if other != fastest:
                return words(
                    "changes", dial=moved.description, value=text, now=moved.label, way=words(f"named.{other}")
                )
        return words("stays", dial=moved.description)

    @property
    def rows(self) -> Rows:
        """The numbers of the picture, one row per method; a dash where it cannot run."""
        found = []
        for name, way in self.ways.items():
            cells = ["–"] * 6
            if way:
                cells = [format_bytes(way.sent), f"{way.imbalance:.2f}", format_bytes(way.held)]
                cells += map(format_seconds, (way.compute, way.exposed, way.seconds))
            columns = ("sent", "imbalance", "held", "compute", "exposed", "together")
            numbers = {words(f"column.{column}"): cell for column, cell in zip(columns, cells, strict=True)}
            found.append({words("column.way"): words(name)} | numbers)
        return found


@lru_cache(maxsize=1024)
def _ways(model: str, seq: int, ranks: int, gpu: str, link: str) -> dict[str, AttentionCost | None]:
    """What each method takes with these values of the dials."""
    spec = replace(PRESETS[model], seq=seq)
    shared = {"cp": ranks, "gpu": GPUS[gpu], "link": LINKS[link], "block_speed": BLOCK_SPEED}
    return {
        name: None
        if method == "all_to_all" and ulysses_refusal(spec, ranks)
        else attention_cost(spec, method=method, zigzag=zigzag, hidden=hidden, **shared)
        for name, (method, zigzag, hidden) in WAYS.items()
    }


def _fastest(ways: dict[str, AttentionCost | None]) -> str:
    return min((name for name, way in ways.items() if way), key=lambda name: ways[name].seconds)


def _part(kind: str, size: float) -> Part:
    return Part(text="", kind=kind, size=size, tooltip=_part_text(kind))


def _part_text(kind: str) -> str:
    return words(f"part.{kind}", speed=BLOCK_SPEED)


def _seconds_by_kind(way: AttentionCost) -> dict[str, float]:
    mean = way.compute / way.imbalance
    return {"forward": mean, "waiting": way.compute - mean, "communication": way.exposed}


def _held_by_kind(way: AttentionCost) -> dict[str, float]:
    return {"activations": way.held - way.buffers, "buffers": way.buffers}


def _time_text(way: AttentionCost) -> str:
    return words("end", seconds=format_seconds(way.seconds), imbalance=way.imbalance)


def _name_with_heads(model: str) -> str:
    return f"{MODEL_NAMES[model]} ({PRESETS[model].num_heads} / {PRESETS[model].kv_heads})"
