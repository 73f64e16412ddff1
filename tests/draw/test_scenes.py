"""Every scene is well-formed SVG, says what it shows, fits its frame, and keeps its labels apart and legible."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pytest

from helpers.draw import (
    Label,
    Line,
    Rect,
    Scene,
    bytes_scene,
    collective_scene,
    memory_scene,
    picture,
    timeline_scene,
    to_figure,
    to_png,
    to_svg,
    topology_scene,
)
from helpers.draw.axis import ticks
from helpers.draw.palette import DARK, LIGHT, MUTED_OPACITY, PAINTS, blend, contrast, paint
from helpers.records import CommEvent, CommLog, MemoryBreakdown, Span, Timeline, compare

SVG = "{http://www.w3.org/2000/svg}"


def ddp_step(source="predicted", *, num_ranks=4, num_blocks=4, title="One DDP step"):
    """Forward, then backward with an all-reduce of each block behind it, then the optimizer."""
    spans = []
    for rank in range(num_ranks):
        now, link_free = 0.1 * rank, 0.0
        for block in range(num_blocks):
            spans.append(span(rank, "forward", now, now + 1, f"blocks.{block}"))
            now += 1
        for block in reversed(range(num_blocks)):
            spans.append(span(rank, "backward", now, now + 2, f"blocks.{block}"))
            now += 2
            link_free = max(now, link_free) + 2.5
            spans.append(span(rank, "communication", link_free - 2.5, link_free, "all_reduce", 25_000_000))
        spans.append(span(rank, "optimizer", link_free, link_free + 1, "AdamW"))
    return Timeline(spans=spans, source=source, title=title)


def span(rank, kind, start, end, name="work", num_bytes=0):
    lane = "communication" if kind == "communication" else "compute"
    return Span(rank=rank, lane=lane, name=name, kind=kind, start=start, end=end, num_bytes=num_bytes)


def gathered(num_ranks):
    """The states of a ring all-gather."""
    states = [[[{chunk} if chunk == rank else set() for chunk in range(num_ranks)] for rank in range(num_ranks)]]
    for step in range(num_ranks - 1):
        now = [[set(cell) for cell in rank] for rank in states[-1]]
        for rank in range(num_ranks):
            chunk = (rank - step) % num_ranks
            now[(rank + 1) % num_ranks][chunk] = {chunk}
        states.append(now)
    return states


def reduced(num_ranks):
    """The states of a reduction in which rank r hands all it has to rank r + 1."""
    states = [[[{rank} for _ in range(num_ranks)] for rank in range(num_ranks)]]
    for last in range(1, num_ranks):
        states.append([[{*range(min(rank, last) + 1)} for _ in range(num_ranks)] for rank in range(num_ranks)])
    return states


MEMORY = MemoryBreakdown(parameters=40, gradients=40, optimizer=80, activations=70, buffers=1, temporaries=9)
SCENES = {
    "timelines": timeline_scene(ddp_step(), ddp_step("recorded")),
    "one rank": timeline_scene(ddp_step(num_ranks=1)),
    "long title": timeline_scene(ddp_step(), title="A long title that leaves no room for the legend beside it"),
    "two titles": timeline_scene(ddp_step(title="a" * 60), ddp_step("emulated", title="overlapped")),
    "16 ranks": timeline_scene(ddp_step(num_ranks=16)),
    "200 blocks": timeline_scene(ddp_step(num_blocks=200)),
    "an instant": timeline_scene(Timeline(spans=[span(0, "other", 1, 1)], source="recorded")),
    "bytes": bytes_scene(
        {"sent bytes": 640, "payload bytes": 428}, {"sent bytes": 640, "payload bytes": 428}, guess=500
    ),
    "predicted bytes": bytes_scene({"sent bytes": 64_189_440}),
    "memory": memory_scene({"rank 0": MEMORY, "rank 1": MEMORY}, capacity=300),
    "gather": collective_scene(gathered(4), "Ring all-gather"),
    "gather 12": collective_scene(gathered(12), "Ring all-gather"),
    "reduce": collective_scene(reduced(5), "Reduce"),
    "ring": topology_scene("ring", 5),
    "tree": topology_scene("tree", 7, title="Tree"),
    "star": topology_scene("star", 4, edges={(0, 1): "weights", (1, 0): "gradients"}, names={0: "master"}),
}
every_scene = pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())


@every_scene
def test_svg_is_well_formed_accessible_and_self_contained(scene):
    text = to_svg(scene)
    root = ElementTree.fromstring(text)
    assert root.tag == SVG + "svg" and root.get("role") == "img"
    named = [root.find(f"*[@id='{name}']").text for name in root.get("aria-labelledby").split()]
    assert named == [scene.title, scene.summary] and all(named)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)) and all(name.startswith(root.get("id")) for name in ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)
    assert "script" not in text and "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "nan" not in text and "inf" not in text


@every_scene
def test_labels_keep_apart_and_inside(scene):
    boxes = [(label.text, label.box) for label in scene.labels()]
    for text, (left, top, right, bottom) in boxes:
        assert left >= 0 and top >= 0 and right <= scene.width + 1 and bottom <= scene.height, text
    for (one, a), (other, b) in combinations(boxes, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, f"{one!r} lies on {other!r}"


@every_scene
def test_the_same_scene_gives_the_same_text(scene):
    assert to_svg(scene) == to_svg(scene)


@pytest.mark.parametrize("name", ["timelines", "memory", "gather", "star"])
def test_png_has_the_right_size_and_is_small(name):
    data = to_png(SCENES[name], scale=1.0)
    size = tuple(int.from_bytes(data[start : start + 4], "big") for start in (16, 20))
    assert data.startswith(b"\x89PNG") and len(data) < 60_000
    assert size == pytest.approx((SCENES[name].width, SCENES[name].height), abs=1)


def test_figure_counts_pixels_from_the_top_left():
    axes = to_figure(SCENES["timelines"]).axes[0]
    assert axes.get_xlim() == (0, 800) and axes.get_ylim()[1] == 0


def tooltips(scene):
    return [item.tooltip for item in scene.items if isinstance(item, (Rect, Line)) and item.tooltip]


def test_a_timeline_shows_every_rank_of_each_timeline_and_its_exposed_communication():
    texts = [label.text for label in SCENES["timelines"].labels()]
    for rank in range(4):
        assert texts.count(f"rank {rank}") == 2
    assert "predicted" in texts and "recorded on this machine" in texts
    assert texts.count("exposed communication 4.00 s of 17.3 s") == 2
    assert "exposed communication 4.00 s of 17.3 s" in SCENES["timelines"].summary


def test_timelines_with_titles_of_their_own_show_them():
    scene = timeline_scene(ddp_step(title="naive"), ddp_step(title="overlapped"))
    texts = [label.text for label in scene.labels()]
    assert scene.title == "One step, rank by rank"
    assert "naive · predicted" in texts and "overlapped · predicted" in texts
    assert timeline_scene(ddp_step(title="naive")).title == "naive"


def test_timelines_share_one_axis():
    """A recorded step of twice the length is drawn twice as wide."""
    scene = timeline_scene(
        Timeline(spans=[span(0, "forward", 5, 6)], source="predicted"),
        Timeline(spans=[span(0, "forward", 0, 2)], source="recorded"),
    )
    short, long = (item for item in scene.items if isinstance(item, Rect) and "forward" in item.tooltip)
    assert (long.x, long.width + 1) == pytest.approx((short.x, 2 * (short.width + 1)))


def test_messages_under_way_together_do_not_cover_each_other():
    spans = [span(0, "communication", start, start + 2, num_bytes=8) for start in (0, 1, 2)]
    bars = [item for item in timeline_scene(Timeline(spans=spans, source="recorded")).items if isinstance(item, Rect)]
    first, second, third = (bar for bar in bars if bar.tooltip)
    assert first.y == second.y != third.y or first.y == third.y != second.y
    assert first.height * 2 <= 26


def test_spans_too_short_to_see_are_joined():
    spans = [span(0, "forward", i * 1e-3, (i + 1) * 1e-3) for i in range(5000)]
    scene = timeline_scene(Timeline(spans=spans, source="predicted"))
    assert "5000 spans" in " ".join(tooltips(scene)) and len(scene.items) < 40


def test_idle_is_hatched():
    scene = timeline_scene(Timeline(spans=[span(0, "forward", 0, 1), span(1, "forward", 0, 3)], source="predicted"))
    hatched = [item for item in scene.items if isinstance(item, Rect) and item.texture == "hatch"]
    assert len(hatched) == 2


def test_bytes_stand_to_scale_and_beside_each_other():
    bars = [item for item in SCENES["bytes"].items if isinstance(item, Rect) and item.tooltip]
    widths = {bar.tooltip.split(":")[0]: bar.width for bar in bars}
    assert widths["sent bytes, your guess"] / widths["sent bytes, measured"] == pytest.approx(500 / 640)
    assert widths["payload bytes, measured"] / widths["sent bytes, measured"] == pytest.approx(428 / 640)
    assert "payload bytes, your guess" not in widths


def test_bytes_scene_takes_records_and_a_comparison():
    fields = {"group": "0", "sequence": 0, "caller": "a.py:1", "start": 0, "end": 1, "dtype": "float32", "shape": (1,)}
    event = CommEvent(rank=0, op="all_reduce", payload_bytes=400, group_ranks=(0, 1), **fields)
    log = CommLog(events=(event,))
    assert "payload: predicted 400 B, measured 400 B." in bytes_scene(log, log).summary
    assert bytes_scene(compare(MEMORY, MEMORY)).summary.count("measured") == 7


def test_memory_bars_add_up_to_the_total():
    bars = [item for item in SCENES["memory"].items if isinstance(item, Rect) and item.tooltip.startswith("rank 0")]
    scale = bars[0].width + 1
    assert sum(bar.width + 1 for bar in bars if bar.width > 1) == pytest.approx(scale * 240 / 40, rel=0.02)
    assert "capacity 300 B" in [label.text for label in SCENES["memory"].labels()]


def test_a_collective_shows_every_rank_step_and_chunk():
    scene = SCENES["gather"]
    texts = [label.text for label in scene.labels()]
    assert {"rank 0", "rank 3", "start", "step 3"} <= set(texts)
    assert "Complete cells of 16, from the start on: 4, 8, 12, 16." in scene.summary
    framed = [item for item in scene.items if isinstance(item, Rect) and item.stroke]
    assert len(framed) == 3 * 4 + 1  # one arrival a rank and step, and the legend's


def test_a_reduction_is_complete_when_every_rank_contributed():
    texts = [label.text for label in SCENES["reduce"].labels()]
    assert texts.count("Σ") == 5
    assert "rank 2, chunk 0: from rank 0 + 1 + 2" in tooltips(SCENES["reduce"])


@pytest.mark.parametrize(("kind", "edges"), [("ring", 5), ("tree", 4), ("star", 4)])
def test_topologies_have_their_edges(kind, edges):
    scene = topology_scene(kind, 5)
    assert sum(isinstance(item, Line) for item in scene.items) == edges
    assert {f"rank {rank}" for rank in range(5)} <= {label.text for label in scene.labels()}


@pytest.mark.parametrize("kind", PAINTS)
def test_text_on_every_fill_has_contrast_aa(kind):
    assert contrast(PAINTS[kind].fill, PAINTS[kind].text) >= 4.5


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_ink_has_contrast_aa_on_its_ground(theme):
    assert contrast(theme.ink, theme.surface) >= 4.5
    assert contrast(blend(theme.ink, theme.surface, MUTED_OPACITY), theme.surface) >= 4.5
    deepest = blend(PAINTS["buffers"].fill, theme.surface, 0.54)  # a chunk that lacks one contribution
    assert contrast(theme.ink, deepest) >= 4.5


# What two kinds of colour-blind eyes see, in linear RGB. Source: Machado, Oliveira & Fernandes 2009, severity 1.
PROTAN = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))
DEUTAN = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))


def seen(colour, matrix):
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    mixed = (max(0.0, sum(a * b for a, b in zip(row, linear, strict=True))) for row in matrix)
    return [c ** (1 / 2.4) for c in mixed]


@pytest.mark.parametrize("matrix", [PROTAN, DEUTAN], ids=["protan", "deutan"])
@pytest.mark.parametrize(
    "kinds",
    [
        ("forward", "backward", "weight_grad", "optimizer", "communication"),
        ("parameters", "gradients", "optimizer", "activations", "buffers"),
    ],
)
def test_kinds_differ_for_colour_blind_eyes(matrix, kinds):
    for one, other in combinations(kinds, 2):
        pair = zip(seen(PAINTS[one].fill, matrix), seen(PAINTS[other].fill, matrix), strict=True)
        distance = sum((a - b) ** 2 for a, b in pair) ** 0.5
        assert distance > 0.12 or PAINTS[one].texture != PAINTS[other].texture, (one, other)


def test_a_picture_carries_svg_png_and_a_short_stable_text():
    first = picture(timeline_scene(ddp_step()))
    bundle = first._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "image/png", "image/svg+xml"}
    assert bundle["text/plain"] == repr(first) == "[picture] One DDP step"
    assert bundle == picture(timeline_scene(ddp_step()))._repr_mimebundle_(include=None, exclude=None)
    slower = picture(timeline_scene(ddp_step(num_blocks=6)))._repr_mimebundle_()
    assert slower["text/plain"] == bundle["text/plain"]


def test_a_picture_with_very_many_marks_keeps_the_png_only():
    items = tuple(Rect(x=i % 90, y=i // 90, width=1, height=1, fill="forward") for i in range(2500))
    bundle = picture(Scene(width=90, height=90, title="many", summary="many", items=items))._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "image/png"}


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: timeline_scene(), "got no timeline"),
        (lambda: timeline_scene("step"), "argument 0 of timeline_scene is a str"),
        (lambda: timeline_scene(Timeline(spans=(), source="recorded")), "timeline 0 has no span"),
        (lambda: bytes_scene({"steps": 3}), "no quantity in bytes"),
        (lambda: memory_scene({}), "no bytes to draw"),
        (lambda: collective_scene([], "nothing"), r"\[\]; give every step and rank the same"),
        (lambda: collective_scene([[[{0}]], [[{0}, {1}]]], "odd"), "give every step and rank the same"),
        (lambda: topology_scene("moebius", 4), "no topology 'moebius'; the known ones are ring, tree, star"),
        (lambda: topology_scene("ring", 1), "needs at least 2"),
        (lambda: topology_scene("star", 3, edges={(0, 3): ""}), r"edge \(0, 3\) does not join"),
        (lambda: picture("scene"), "picture got a str; give a Scene"),
        (lambda: paint("joy"), "no colour for 'joy'"),
        (lambda: Rect(x=0, y=0, width=-1, height=1), "a Rect is -1 x 1 pixels"),
        (lambda: Rect(x=0, y=0, width=1, height=1, fill="joy"), "the fill of a Rect is 'joy'"),
        (lambda: Label(x=0, y=0, text="a", anchor="left"), "the anchor of a Label is 'left'"),
        (lambda: Scene(width=0, height=1, title="", summary=""), "a Scene is 0 x 1 pixels"),
    ],
)
def test_bad_input_gets_a_sentence(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()


@pytest.mark.parametrize(("end", "expected"), [(1.0, 0.2), (0.0153, 0.005), (7e-6, 2e-6), (0.0, 0.0)])
def test_ticks_are_round(end, expected):
    marks = ticks(end)
    assert marks[0] == 0 and (marks[1] if len(marks) > 1 else 0.0) == pytest.approx(expected)


def test_text_of_the_learner_is_escaped():
    scene = Scene(width=9, height=9, title="a<b", summary="a&b", items=(Label(x=0, y=0, text="<script>"),))
    assert ElementTree.fromstring(to_svg(scene)).findall(f"{SVG}text")[0].text == "<script>"


def test_importing_draw_takes_neither_torch_nor_matplotlib():
    code = "import sys, helpers.draw; sys.exit(bool({'torch', 'matplotlib', 'PIL', 'pygments'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
