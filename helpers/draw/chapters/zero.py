"""Draws what chapter 08 shows of ZeRO: a step number by number, traffic in parts of P, messages, and resharding.

ZeRO shards the optimizer state (stage 1), also the gradients (2) and also the parameters (3) over the ranks. P stands
for the bytes of all parameters. The equal stacks of plain data parallelism are drawn by `memory.replicas_scene`.

`zero_scene` shows each step of `predict.by_hand.zero_steps`, for the ZeRO explorer. Its small model has three LAYERS of
three NUMBERS each; of every number there are three KINDS: a parameter, a gradient and the optimizer's state. A ZeroStep
says what each rank holds after one action, such as an all-gather. The state of a number is OWN (this rank keeps it),
EVERY (all ranks have the same), TERM (from this rank's batch alone, to be averaged) or STALE (averaged on another rank
meanwhile).

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from helpers.draw.chapters.tensor_parallel import number_text
from helpers.draw.palette import kind_style, kind_word
from helpers.draw.rows import MESSAGES, BarRow, BarStyle, Part, memory_parts, rows_scene
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
    stacked_scene,
    text_width,
    title_label,
)
from helpers.learner.words import book
from helpers.predict.by_hand.zero_steps import (
    BYTES,
    EVERY,
    KINDS,
    LAYERS,
    NUMBERS,
    OWN,
    STALE,
    TERM,
    ElementCopy,
    ZeroStep,
)
from helpers.quantities.units import format_bytes
from helpers.records import MemoryBreakdown

words = book("pictures")  # what a reader sees, by name, in the learner's language: learner/words/pictures.yaml
# The style of the bars of traffic: that of messages, in other sizes (pixels).
_SHARES = replace(MESSAGES, height=30, pitch=42, end_gap=14, gap=2, radius=2, right=96, above=10)
_LINE, _ROW_GAP, _MESSAGES_RIGHT = 17.0, 12.0, 14.0  # pixels: a line of text, between rows, the right margin
# Pixels of resharding: left and right margin, the top edge, a shard's height, the gap above and below the tensors, and
# the tensors' height.
_LEFT, _RIGHT, _TOP, _SHARD, _GAP, _TENSOR = 100.0, 20.0, 46.0, 26.0, 10.0, 40.0
_TENSOR_COLOURS = ("rank4", "rank1", "rank6", "rank3")
# Of a step number by number:
# Pixels of the numbers: the left edge, a cell's width and height, between two kinds, and from rank to rank.
_CELLS_LEFT, _CELL_WIDTH, _CELL_HEIGHT, _KINDS_GAP, _PITCH = 92.0, 36.0, 19.0, 24.0, 84.0
_BYTES_LEFT, _PIXELS_PER_BYTE, _BAR = 478.0, 1.5, 13.0  # pixels: where the bars of bytes begin, per byte, their height
_STAGES = BarStyle(height=20, pitch=27, hidden_below=0)  # of the bars of the model of real size; no part is left out
_OWNER_COLOURS = ("rank4", "rank1", "rank6")  # of ranks 0 to 2; blue and green stand for kinds in this picture
_PALE = 0.35  # the opacity of numbers in the state TERM; ink is legible on it in both themes
zero_words = book("zero")  # what a reader sees, by name, in the learner's language: learner/words/zero.yaml
_STATE_NAMES = {TERM: "term", EVERY: "every", STALE: "stale", OWN: "own"}  # the states by their names in zero.yaml


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


# -- a step, number by number ----------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class StageBar:
    """A model of real size at one stage of ZeRO. `words` stands right of the bar, after the bytes.

    `chosen` is whether this is the stage of the picture above.
    """

    name: str
    memory: MemoryBreakdown
    words: str
    chosen: bool


def zero_scene(step: ZeroStep, *, title: str, bars: Sequence[StageBar], bars_title: str) -> Scene:
    """A row for each rank with its parameters, gradients and optimizer state by layer, and their bytes; below, `bars`.

    What this step computed is framed in ink, what it sent in the colour of communication.
    """
    ranks = range(len(step.copies))  # copies[rank][kind] maps (layer, number) to what the rank holds of it
    items, top = heading(title, _legend(step), 0)  # width 0 puts the legend below the title, however short that is
    for kind in KINDS:
        items.append(centred_label(_kind_middle(kind), top + 14, zero_words(f"heading.{kind}"), 11, bold=True))
    items.append(Label(x=_BYTES_LEFT, y=top + 14, text=zero_words("heading.now"), size=11, bold=True))
    top += 30
    for rank in ranks:
        items += _rank(step, rank, top + rank * _PITCH)
    if step.message:
        items += _message_arrows(step, len(step.copies), top)
    height = top + len(step.copies) * _PITCH - 16
    summary = " ".join(_rank_text(step, rank) for rank in ranks)
    numbers = Scene(height=height, title=title, summary=summary, items=items)
    totals = "; ".join(f"{bar.name} {format_bytes(bar.memory.total)}" for bar in bars)
    legend = kinds_legend(list(KINDS))
    real = rows_scene([_stage(bar) for bar in bars], _STAGES, title=bars_title, legend=legend, summary=totals)
    return stacked_scene(numbers, real, title=title)


def _legend(step: ZeroStep) -> list[tuple[str, dict]]:
    """The same entries at every step, so that nothing moves from one step to the next."""
    owners = [(zero_words("own", rank=rank), _number_style(OWN, rank)) for rank in range(len(step.copies))]
    states = [(zero_words(f"legend.{_STATE_NAMES[state]}"), _number_style(state, 0)) for state in (TERM, EVERY, STALE)]
    return owners + states


def _number_style(state: str, rank: int) -> dict[str, str | float]:
    """How a number looks in this state on this rank."""
    if state == EVERY:
        return {"fill": "panel", "stroke": "rule"}
    if state == STALE:
        return {"texture": "hatch", "stroke": "rule"}
    return {"fill": _OWNER_COLOURS[rank], "opacity": _PALE if state == TERM else 1.0}


def _kind_left(kind: str) -> float:
    """The left edge of the numbers of a kind."""
    return _CELLS_LEFT + KINDS.index(kind) * (NUMBERS * _CELL_WIDTH + _KINDS_GAP)


def _kind_middle(kind: str) -> float:
    """The middle of the numbers of a kind."""
    return _kind_left(kind) + NUMBERS * _CELL_WIDTH / 2


def _rank(step: ZeroStep, rank: int, top: float) -> Iterator[Rect | Label]:
    """A row of the picture: the rank, its numbers by layer and kind, and the bytes of each kind."""
    middle = top + len(LAYERS) * _CELL_HEIGHT / 2
    yield Label(x=MARGIN, y=middle - 8, text=f"rank {rank}")
    yield Label(x=MARGIN, y=middle + 9, text=f"{step.total_bytes(rank)} B", bold=True)
    for row, layer in enumerate(LAYERS):
        y = top + row * _CELL_HEIGHT
        yield Label(
            x=_CELLS_LEFT - 14, y=y + _CELL_HEIGHT / 2 - 1, text=layer, size=11, anchor="middle", colour="muted"
        )
        for kind in KINDS:
            for column in range(NUMBERS):
                number = step.copies[rank][kind].get((layer, column))
                x = _kind_left(kind) + column * _CELL_WIDTH
                yield from _number(number, rank, f"{layer}{column}", kind, x, y)
        yield from _kind_bytes(step, rank, KINDS[row], y)  # there are as many kinds as layers, one bar per row
    yield from _frames(step, top)


def _number(number: ElementCopy | None, rank: int, name: str, kind: str, x: float, y: float) -> Iterator[Rect | Label]:
    """A number with its value; where the rank does not have it (None), an empty box."""
    box = {"x": x, "y": y, "width": _CELL_WIDTH - 2, "height": _CELL_HEIGHT - 2, "radius": 2}
    if number is None:
        yield Rect(**box, stroke="rule", tooltip=zero_words("lacks", rank=rank, name=name, kind=kind_word(kind)))
        return
    text = number_text(number.value)
    state = zero_words(f"state.{_STATE_NAMES[number.state]}")
    tooltip = zero_words("number", rank=rank, kind=kind_word(kind), name=name, text=text, state=state)
    yield Rect(**box, **_number_style(number.state, rank), tooltip=tooltip)
    if number.state != STALE:  # a stale number is hatched, and its value is in the tooltip only
        on = _OWNER_COLOURS[rank] if number.state == OWN else ""
        yield centred_label(x + (_CELL_WIDTH - 2) / 2, y + (_CELL_HEIGHT - 2) / 2, text, 11, on=on)


def _frames(step: ZeroStep, top: float) -> Iterator[Rect]:
    """A frame around the layers that this step computed or sent: one layer, or all."""
    colour = "communication" if step.message else "ink"
    word = step.message.op.replace("_", "-") if step.message else zero_words("computed")
    for kind in dict.fromkeys(kind for kind, _ in sorted(step.written)):  # `written` are (kind, layer); each kind once
        rows = [LAYERS.index(layer) for touched_kind, layer in step.written if touched_kind == kind]
        x, y = _kind_left(kind) - 2.5, top + min(rows) * _CELL_HEIGHT - 2
        box = {"x": x, "y": y, "width": NUMBERS * _CELL_WIDTH + 3, "height": len(rows) * _CELL_HEIGHT + 2}
        yield Rect(**box, radius=3, stroke=colour, stroke_width=2, tooltip=zero_words("touched", word=word))


def _kind_bytes(step: ZeroStep, rank: int, kind: str, y: float) -> Iterator[Rect | Label]:
    """The bar of one kind, with its bytes."""
    num_bytes = step.num_bytes(rank, kind)
    width = num_bytes * _PIXELS_PER_BYTE
    if width:
        tooltip = zero_words("bytes", rank=rank, num_bytes=num_bytes, kind=kind_word(kind), each=BYTES[kind])
        yield Rect(x=_BYTES_LEFT, y=y + 2, width=width, height=_BAR, tooltip=tooltip, **kind_style(kind))
    text, x = f"{kind_word(kind)} {num_bytes} B", _BYTES_LEFT + width + (6 if width else 0)
    yield Label(x=x, y=y + 2 + _BAR / 2, text=text, size=11)


def _message_arrows(step: ZeroStep, num_ranks: int, top: float) -> Iterator[Line | Label]:
    """Arrows both ways between neighbouring ranks, in the column of the numbers that are sent."""
    x = _kind_middle(step.message.kind)
    op_name = step.message.op.replace("_", "-")
    tooltip = zero_words("of", op=op_name, kind=kind_word(step.message.kind))
    style = {"colour": "communication", "width": 2.0, "arrow": True, "tooltip": tooltip}
    for rank in range(num_ranks - 1):
        upper = top + rank * _PITCH + len(LAYERS) * _CELL_HEIGHT + 3
        lower = top + (rank + 1) * _PITCH - 5
        yield Line(x1=x - 36, y1=upper, x2=x - 36, y2=lower, **style)
        yield Line(x1=x - 46, y1=lower, x2=x - 46, y2=upper, **style)
        yield Label(x=x - 28, y=(upper + lower) / 2, text=op_name, size=11, bold=True)


def _stage(bar: StageBar) -> BarRow:
    """The row of parts for a stage of ZeRO."""

    def tooltip(kind: str, num_bytes: float) -> str:
        return zero_words("real", name=bar.name, num_bytes=num_bytes, kind=kind_word(kind))

    end = f"{format_bytes(bar.memory.total)}{bar.words}"
    return BarRow(name=bar.name, parts=memory_parts(bar.memory, KINDS, tooltip), end=end, is_chosen=bar.chosen)


def _rank_text(step: ZeroStep, rank: int) -> str:
    """What a rank holds, in words."""
    counts = [zero_words("count", count=len(step.copies[rank][kind]), kind=kind_word(kind)) for kind in KINDS]
    return zero_words("held", rank=rank, counts=counts, total=step.total_bytes(rank))
