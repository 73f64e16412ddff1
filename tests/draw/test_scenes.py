"""Every scene is well-formed SVG, says what it shows, fits its frame, and keeps its labels apart and legible."""

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pytest

from helpers import draw
from helpers.draw import Label, Rect, Scene, calls_scene, picture, timeline_scene, to_png, to_svg, zero_messages
from helpers.draw.chapters.fault_tolerance import generations_scene, heartbeats_scene
from helpers.draw.chapters.pipeline import stage_splits_scene
from helpers.draw.chapters.zero import reshard_scene
from helpers.draw.scene import SHOWN, stacked_scene
from helpers.records import Timeline
from helpers.specs.mesh import Mesh
from tests.draw.scenes import MEMORY, SCENES, WALK, box_of, ddp_step

SVG = "{http://www.w3.org/2000/svg}"


def svg_faults(scene):
    """What is wrong with the SVG of a scene, which must be well-formed, accessible, self-contained and always equal."""
    text = to_svg(scene)
    root = ElementTree.fromstring(text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    named = [root.find(f"*[@id='{name}']").text for name in root.get("aria-labelledby").split()]
    promises = {
        "it is an svg element": root.tag == SVG + "svg",
        "its role is img, or group where it can be clicked": root.get("role")
        == ("group" if "data-pick" in text else "img"),
        "its title and summary are named": named == [scene.title, scene.summary] and all(named),
        "its ids are its own": len(ids) == len(set(ids)) and all(name.startswith(root.get("id")) for name in ids),
        "its fills exist": set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids),
        "nothing is loaded": "script" not in text
        and "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', ""),
        "every number is one": "nan" not in text and "inf" not in text,
        "the same scene gives the same text": to_svg(scene) == text,
    }
    return [f"the SVG breaks a promise: {promise}" for promise, is_kept in promises.items() if not is_kept]


def label_faults(scene):
    """The labels that leave the frame, lie on another one, or are smaller than 12 pixels where there is room."""
    boxes = [(label.text, box_of(label)) for label in scene.labels()]
    for text, (left, top, right, bottom) in boxes:
        if left < 0 or top < 0 or right > scene.width + 1 or bottom > scene.height:
            yield f"{text!r} leaves the frame"
    for (one, a), (other, b) in combinations(boxes, 2):
        if not (a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]):
            yield f"{one!r} lies on {other!r}"
    yield from (f"{label.text!r} is too small" for label in scene.labels() if label.size * SHOWN < 12)


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_a_scene_is_sound_svg_and_its_labels_keep_apart_inside_and_legible(scene):
    assert [*svg_faults(scene), *label_faults(scene)] == []


def test_faults_are_found():
    """The looks above find what they look for."""
    labels = [Label(x=x, y=10, text="word", size=9) for x in (-5, 5)]
    faults = list(label_faults(Scene(width=60, height=20, title="t", summary="s", items=labels)))
    said = [fault.split("'")[2] for fault in faults]
    assert said == [" leaves the frame", " lies on ", " is too small", " is too small"]
    said = "the SVG breaks a promise: its title and summary are named"
    assert svg_faults(Scene(width=9, height=9, title="t", summary="")) == [said]


@pytest.mark.parametrize("name", ["timelines", "memory", "gather", "star"])
def test_png_has_the_right_size_and_is_small(name):
    data = to_png(SCENES[name], scale=1.0)
    size = tuple(int.from_bytes(data[start : start + 4], "big") for start in (16, 20))
    assert data.startswith(b"\x89PNG") and len(data) < 60_000
    assert size == pytest.approx((SCENES[name].width, SCENES[name].height), abs=1)


def test_a_picture_carries_a_png_and_a_short_stable_text():
    first = picture(timeline_scene(ddp_step()))
    bundle, about = first._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "image/png"}
    assert bundle["text/plain"] == repr(first) == "[picture] One DDP step"
    assert (bundle, about) == picture(timeline_scene(ddp_step()))._repr_mimebundle_(include=None, exclude=None)
    slower, _ = picture(timeline_scene(ddp_step(num_blocks=6)))._repr_mimebundle_()
    assert slower["text/plain"] == bundle["text/plain"]


def test_a_picture_says_its_width_and_what_it_shows():
    scene = SCENES["timelines"]
    about = picture(scene)._repr_mimebundle_()[1]["image/png"]
    assert about["alt"] == f"{scene.title}. {scene.summary}" and "exposed communication 4.00 s" in about["alt"]
    assert about["width"] == 1000 and "height" not in about  # or a narrow window would squeeze it
    assert f'width="{about["width"]}"' in to_svg(scene)  # live and saved pictures are as large as each other


XY, CUBE = {"x": "x", "y": "y", "title": "t"}, Mesh(dp=2, pp=2, tp=2)
NO_STEPS = Timeline(spans=(), source="recorded")
PLAN = dict(gpus_per_node=4, rank=0, limit=1, limit_name="", title="")


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: draw.timeline_scene(), "got no timeline"),
        (lambda: draw.timeline_scene("step"), "argument 0 of timeline_scene is a str"),
        (lambda: draw.timeline_scene(NO_STEPS), "timeline 0 has no span"),
        (lambda: draw.pipeline_scene(), "give one, such as that of simulate"),
        (lambda: draw.pipeline_scene(NO_STEPS), "give one, such as that of simulate"),
        (lambda: draw.memory_scene({}), "no bytes to draw"),
        (lambda: draw.memory_scene({"rank 0": MEMORY}, capacity=0), "bytes, but a limit lies above 0"),
        (lambda: draw.memory_scene({"rank 0": MEMORY}, capacity=-1.0), "bytes, but a limit lies above 0"),
        (lambda: draw.memory_scene({"rank 0": MEMORY}, capacity=math.nan), "bytes, but a limit lies above 0"),
        (lambda: draw.memory_curve_scene(NO_STEPS, title="t"), "holds nothing"),
        (lambda: draw.replicas_scene(MEMORY, 0, capacity=30, title="t"), "at least one rank"),
        (lambda: draw.speedup_scene(title=""), "speedup_scene got no point: give points"),
        (lambda: draw.collective_scene([], "nothing"), r"\[\]; give every step and rank the same"),
        (lambda: draw.collective_scene([[[{0}]], [[{0}, {1}]]], "odd"), "give every step and rank the same"),
        (lambda: draw.topology_scene("moebius", 4), "no topology 'moebius'; the known ones are ring, star"),
        (lambda: draw.topology_scene("ring", 1), "needs at least 2"),
        (lambda: draw.topology_scene("star", 3, edges={(0, 3): ""}), r"edge \(0, 3\) does not join"),
        (lambda: draw.mesh_scene(Mesh(dp=4), gpus_per_node=0), "gpus_per_node is 0, but"),
        (lambda: draw.mesh_scene(Mesh(dp=4), rank=4), "rank 4 does not exist"),
        (lambda: draw.mesh_scene(Mesh(dp=1024)), "the mesh has 1024 ranks; a picture holds 512"),
        (lambda: draw.cube_scene(Mesh(dp=2, cp=2)), "the mesh has cp=2"),
        (lambda: draw.cube_scene(Mesh(dp=8, pp=4, tp=4)), "no room for pp 4 × dp 8 × tp 4"),
        (lambda: draw.cube_scene(CUBE, 8), "rank 8 does not exist"),
        (lambda: draw.mesh_plan_scene(CUBE, {}, [], **PLAN), "0 breakdowns for 8 ranks"),
        (lambda: draw.number_formats_scene(["fp12"]), "no number format 'fp12'; the known ones are fp32, tf32"),
        (lambda: draw.number_formats_scene([]), "got no format; give some of fp32"),
        (lambda: draw.number_formats_scene(marks={"a zero": 0.0}), "the mark 'a zero' is 0.0, but"),
        (lambda: draw.number_formats_scene(marks={"too far": math.inf}), "needs a finite value above 0"),
        (lambda: draw.buckets_scene([], cap=10), "empty bucket or gradient"),
        (lambda: draw.buckets_scene([[]], cap=10), "empty bucket or gradient"),
        (lambda: draw.buckets_scene([[("a", 0)]], cap=10), "empty bucket or gradient"),
        (lambda: draw.payloads_scene({"none": []}, title="t"), "found no message"),
        (lambda: draw.token_weights_scene((4, 0), title="t"), "give each of them one or more"),
        (lambda: draw.shards_scene(["·"]), "got no matrix; give a list"),
        (lambda: draw.shares_scene({"stage 1": []}, counted={}, title="t"), "without messages"),
        (lambda: draw.messages_scene({"a": zero_messages(WALK)}, parts={"b": 3}, title="t"), "the longest row has 4"),
        (lambda: reshard_scene({"a": 4}, 4, 0, title="t"), "0 ranks"),
        (lambda: draw.healing_scene([], title="t"), "healing_scene got no round"),
        (lambda: heartbeats_scene({}, {}, now=4, title="t"), "0 ranks"),
        (lambda: generations_scene([], steps=40, every=10, title="t"), "got no row to draw"),
        (lambda: draw.hang_scene(["a", "b"], [2]), "numbered 0 to 1"),
        (lambda: draw.means_scene([[1.0], []]), "give each at least one"),
        (lambda: draw.all_reduce_scene([1, 2], [3]), "2 ranks before and 1 after"),
        (lambda: draw.calls_scene([["send"]], matched=[], title="t"), "not 1"),
        (lambda: stage_splits_scene([1, 1, 1, 3], {"short": [2, 1]}, title="t"), "has 3 layers of 4"),
        (lambda: draw.curves_scene({"a": [(0, 0), (1, 1)]}, dots={"b": [(0, 0)]}, **XY), "dots of b, but curves of a"),
        (lambda: draw.curves_scene({}, **XY), "it draws 1 to 4"),
        (lambda: draw.parts_scene({}, title="empty", ends={}), "'empty' got no row to draw"),
        (lambda: draw.picture("scene"), "picture got a str; give a Scene"),
        (lambda: stacked_scene(title="none"), "at least one"),
        (lambda: Rect(x=0, y=0, width=-1, height=1), "a Rect is -1 x 1 pixels"),
        (lambda: Rect(x=0, y=0, width=1, height=1, fill="joy"), "the fill of a Rect is 'joy'"),
        (lambda: Label(x=0, y=0, text="a", anchor="left"), "the anchor of a Label is 'left'"),
        (lambda: Scene(width=0, height=1, title="", summary=""), "a Scene is 0 x 1 pixels"),
    ],
)
def test_bad_input_gets_a_sentence(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()


def test_text_of_the_learner_is_escaped():
    scene = Scene(width=9, height=9, title="a<b", summary="a&b", items=(Label(x=0, y=0, text="<script>"),))
    assert ElementTree.fromstring(to_svg(scene)).findall(f"{SVG}text")[0].text == "<script>"


def test_importing_draw_takes_neither_torch_nor_matplotlib():
    code = "import sys, helpers.draw; sys.exit(bool({'torch', 'matplotlib', 'PIL', 'pygments'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_pictures_stand_below_each_other():
    one = calls_scene([["send"], ["recv"]], matched=[(0, 0)], title="one")
    both = stacked_scene(one, one, title="both")
    assert (both.title, both.height > 2 * one.height, len(both.items)) == ("both", True, 2 * len(one.items))
    assert "one: Rank 0" in both.summary
    assert both.labels()[-1].y - one.labels()[-1].y == pytest.approx(both.height - one.height)
