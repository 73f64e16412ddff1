"""Draws what chapter 08 shows of ZeRO: traffic per stage in parts of P, messages in their order, and resharding.

ZeRO shards the optimizer state (stage 1), also the gradients (2) and also the parameters (3) over the ranks. P stands
for the bytes of all parameters. The states of a training step are drawn by `helpers.draw.zero`, and the equal stacks of
plain data parallelism by `helpers.draw.memory.replicas_scene`.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from helpers.draw.bars import MESSAGES, BarRow, Part, rows_scene
from helpers.draw.palette import kind_style
from helpers.draw.scene import (
    MARGIN,
    WIDTH,
    Label,
    Line,
    Rect,
    Scene,
    SceneItem,
    centred_label,
    heading,
    kinds_legend,
    text_width,
    title_label,
)
from helpers.learner.words import book
from helpers.quantities.units import format_bytes

words = book("pictures")  # what a reader sees, by name, in the learner's language: learner/words/pictures.yaml
# The style of the bars of traffic: that of messages, in other sizes (pixels).
_SHARES = replace(MESSAGES, height=30, pitch=42, end_gap=14, gap=2, radius=2, right=96, above=10)
_LINE, _ROW_GAP, _MESSAGES_RIGHT = 17.0, 12.0, 14.0  # pixels: a line of text, between rows, the right margin
# Pixels of resharding: left and right margin, the top edge, a shard's height, the gap above and below the tensors, and
# the tensors' height.
_LEFT, _RIGHT, _TOP, _SHARD, _GAP, _TENSOR = 100.0, 20.0, 46.0, 26.0, 10.0, 40.0
_TENSOR_COLOURS = ("rank4", "rank1", "rank6", "rank3")


# -- traffic per step ------------------------------------------------------------------------------------------------
def zero_shares(num_ranks: int) -> dict[str, list[Part]]:
    """What a rank sends per step of one micro-batch: plain data parallelism and each stage of ZeRO, by a ring.

    The size of a part is the bytes of a message as a share of P.
    """
    share = (num_ranks - 1) / num_ranks  # of a reduce-scatter or an all-gather; an all-reduce is both
    # `update` sends the updated parameters, of which each rank has only its own shard.
    reduce, update = _share("reduce-scatter", "gradients", share), _share("all-gather", "parameters", share)
    gathers = [_share(f"gather, {direction}", "parameters", share) for direction in ("forward", "backward")]
    plain = _share("all-reduce", "gradients", 2 * share)
    stages = {"stage 1": [reduce, update], "stage 2": [reduce, update], "stage 3": [*gathers, reduce]}
    return {"data parallel": [plain], **stages}


def _share(text: str, kind: str, share: float) -> Part:
    """One message, or several of a kind, with its share of P on hover."""
    return Part(text=text, kind=kind, size=share, tooltip=words("shares.part", text=text, share=f"{share:.2f}"))


def shares_scene(rows: Mapping[str, Sequence[Part]], *, counted: Mapping[str, float], title: str) -> Scene:
    """A bar of messages for each way to train; the bar is predicted, and a dot at its end shows what was counted.

    `rows` maps a name ("stage 1") to its messages, and `counted` maps it to the bytes that were recorded, in parts of
    P. Raises ValueError for a row without messages.
    """
    if not rows or not all(rows.values()):
        raise ValueError("shares_scene found a row without messages; give each name at least one Part")
    totals = {name: sum(part.size for part in parts) for name, parts in rows.items()}
    kinds = list(dict.fromkeys(part.kind for parts in rows.values() for part in parts))
    bars = [
        BarRow(name=name, parts=parts, end=f"{totals[name]:.2f} P", counted=counted[name])
        for name, parts in rows.items()
    ]
    legend = [*kinds_legend(kinds), (words("shares.counted"), {"fill": "ink"})]
    summary = " ".join(
        words("shares.row", name=name, parts=[part.tooltip for part in parts], total=f"{totals[name]:.2f}")
        for name, parts in rows.items()
    )
    return rows_scene(bars, _SHARES, title=title, legend=legend, summary=summary)


# -- messages in their order -----------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class SentMessage:
    """A message: what it does ("gather"), with which tensor ("layer 0"), the kind that it carries, and its bytes."""

    verb: str
    tensor: str
    kind: str
    num_bytes: int

    @property
    def lines(self) -> list[str]:
        """The text on its box, broken behind a hyphen: "reduce-", "scatter", "layer 2"."""
        return [*self.verb.replace("-", "-\n").split("\n"), self.tensor]


def zero_messages(log: Sequence[tuple[str, int, int]]) -> list[SentMessage]:
    """The messages of a recorded step of ZeRO, given as (operation, layer, bytes) in the order of sending."""
    verbs = {"all_gather": ("gather", "parameters"), "reduce_scatter": ("reduce-scatter", "gradients")}
    return [
        SentMessage(verb=verbs[op][0], tensor=f"layer {layer}", kind=verbs[op][1], num_bytes=num_bytes)
        for op, layer, num_bytes in log
    ]


def messages_scene(rows: Mapping[str, Sequence[SentMessage]], *, parts: Mapping[str, int], title: str) -> Scene:
    """A row of boxes for each name, one box per message in the order of sending.

    `parts` names stretches of messages, such as {"forward": 3}, which stand above the boxes. Raises ValueError where
    the parts do not cover the longest row.
    """
    longest = max((len(messages) for messages in rows.values()), default=0)
    if not longest or sum(parts.values()) != longest:
        raise ValueError(f"messages_scene: parts of {dict(parts)} messages, but the longest row has {longest}")
    kinds = list(dict.fromkeys(message.kind for messages in rows.values() for message in messages))
    items, top = heading(title, kinds_legend(kinds))  # title and legend, and the y where they end
    left = 26 + max(text_width(name, 13) for name in rows)
    step = (WIDTH - left - _MESSAGES_RIGHT) / longest
    box_height = 12 + _LINE * max(len(message.lines) for messages in rows.values() for message in messages)
    items += _stretches(parts, left, step, top + 12)
    for number, (name, messages) in enumerate(rows.items()):
        y = top + 30 + number * (box_height + _ROW_GAP)
        items.append(Label(x=left - 12, y=y + box_height / 2, text=name, size=13, anchor="end"))
        for index, message in enumerate(messages):
            items += _message_box(message, left + index * step, y, step - 4, box_height)
    summary = " ".join(  # said: the messages in words
        words("messages.row", name=name, said=[f"{message.verb} {message.tensor}" for message in messages])
        for name, messages in rows.items()
    )
    return Scene(height=top + 30 + len(rows) * (box_height + _ROW_GAP), title=title, summary=summary, items=items)


def _stretches(parts: Mapping[str, int], left: float, step: float, y: float) -> Iterator[Label | Line]:
    """A line over the boxes of each stretch, with its name; `step` are the pixels from box to box."""
    for name, num_messages in parts.items():
        right = left + num_messages * step
        yield Line(x1=left, y1=y + 10, x2=right - 4, y2=y + 10, colour="muted", width=1.5)
        yield centred_label((left + right) / 2 - 2, y, name, colour="muted", bold=True)
        left = right


def _message_box(message: SentMessage, x: float, y: float, width: float, height: float) -> Iterator[Rect | Label]:
    """A message as a box with its text, and its bytes on hover."""
    tooltip = f"{message.verb} {message.tensor} · {format_bytes(message.num_bytes)}"
    yield Rect(x=x, y=y, width=width, height=height, radius=4, tooltip=tooltip, **kind_style(message.kind))
    for number, text in enumerate(message.lines):
        line_y = y + height / 2 + (number - (len(message.lines) - 1) / 2) * _LINE
        yield centred_label(x + width / 2, line_y, text, on=message.kind)


# -- resharding ------------------------------------------------------------------------------------------------------
def reshard_scene(tensors: Mapping[str, int], before: int, after: int, *, title: str) -> Scene:
    """A flat buffer of `tensors`, sharded over `before` ranks above it and over `after` ranks below it.

    `tensors` maps names to numbers of elements. Zeros that fill up the last shard are hatched. Raises ValueError for a
    world without ranks, or for more tensors than there are colours.
    """
    if min(before, after) < 1 or not 1 <= len(tensors) <= len(_TENSOR_COLOURS):
        raise ValueError(
            f"reshard_scene got {len(tensors)} tensors, {before} and {after} ranks; "
            f"it draws 1 to {len(_TENSOR_COLOURS)} tensors for at least one rank each"
        )
    total = sum(tensors.values())
    shard_sizes = [-(-total // num_ranks) for num_ranks in (before, after)]  # rounded up
    element_width = (WIDTH - _LEFT - _RIGHT) / max(before * shard_sizes[0], after * shard_sizes[1])
    middle = _TOP + _SHARD + _GAP
    items: list[SceneItem] = [title_label(title)]
    items += _shards(before, shard_sizes[0], total, element_width, _TOP)
    items += _tensors(tensors, element_width, middle)
    items += _shards(after, shard_sizes[1], total, element_width, middle + _TENSOR + _GAP)
    # share and other: the elements of a shard before and after; "recut" says how the shards differ.
    sizes = {"before": before, "after": after, "share": shard_sizes[0], "other": shard_sizes[1]}
    height, summary = middle + _TENSOR + 2 * _GAP + _SHARD, words("recut", tensors=list(tensors), **sizes)
    return Scene(height=height, title=title, summary=summary, items=items)


def _shards(num_ranks: int, shard_size: int, total: int, element_width: float, y: float) -> Iterator[Rect | Label]:
    """A frame per shard, hatched where it extends beyond the elements."""
    yield Label(x=MARGIN, y=y + _SHARD / 2, text=words("ranks", num=num_ranks), bold=True)
    for rank in range(num_ranks):
        x, width = _LEFT + rank * shard_size * element_width, shard_size * element_width - 4
        # The pixels of this shard that lie beyond the last element; at most the entire shard.
        padding = min(shard_size, max(0, (rank + 1) * shard_size - total)) * element_width
        if padding:
            zeros = {"x": x + width + 2 - padding, "width": padding, "texture": "hatch", "tooltip": words("zeros")}
            yield Rect(y=y, height=_SHARD, **zeros)
        yield Rect(x=x + 2, y=y, width=width, height=_SHARD, stroke="ink", stroke_width=1.5, radius=4)
        yield centred_label(x + (width - padding) / 2, y + _SHARD / 2, f"rank {rank}")


def _tensors(tensors: Mapping[str, int], element_width: float, y: float) -> Iterator[Rect | Label | Line]:
    """A box per tensor, with a mark between two elements."""
    x = _LEFT
    for colour, (name, numel) in zip(_TENSOR_COLOURS, tensors.items(), strict=False):  # there may be fewer tensors
        width = numel * element_width
        yield Rect(x=x + 1, y=y, width=width - 2, height=_TENSOR, fill=colour)
        for edge in (x + number * element_width for number in range(1, numel)):
            yield Line(x1=edge, y1=y + _TENSOR - 9, x2=edge, y2=y + _TENSOR, colour="ink")
        yield centred_label(x + width / 2, y + _TENSOR / 2 - 4, name, on=colour, bold=True, size=13)
        x += width
