"""The timeline viewer without a browser: what it sends, what it says, and bad input."""

import json
import re
from array import array
from pathlib import Path

import pytest

import helpers.widgets.timeline_explorer as module
from helpers.draw.palette import PAINTS
from helpers.predict.time.data_parallel import BackwardPass, simulate_ddp_step
from helpers.records import KINDS, LANES, MEMORY_KINDS, Holding, Span, Timeline
from helpers.specs import Link
from helpers.widgets import TimelineExplorer
from helpers.widgets.timeline_explorer import rows_without_overlap
from helpers.widgets.timeline_view import TimelineView

MIB = 2**20
STATIC = Path(module.__file__).parent / "static"
FOUR = BackwardPass(names=tuple("dcba"), num_bytes=(2 * MIB,) * 4, seconds=(1.0, 1.0, 1.0, 1.0), forward_seconds=2.0)


def step(**options):
    link = Link(latency=0.5, bandwidth=2 * MIB)
    return simulate_ddp_step(FOUR, link=link, world_size=2, bucket_cap_mb=4, optimizer_seconds=1.0, **options)


def span(start=0.0, end=1.0, rank=0, lane="compute", kind="forward", name="block", num_bytes=0):
    return Span(rank=rank, lane=lane, name=name, kind=kind, start=start, end=end, num_bytes=num_bytes)


def timeline(*spans, source="recorded", **more):
    return Timeline(spans=spans or (span(),), source=source, **more)


def numbers(code, buffer):
    values = array(code)
    values.frombytes(buffer)
    return list(values)


def decoded(panel, names):
    """The spans that the browser will see."""
    columns = [numbers(code, panel[key]) for code, key in (("d", "start"), ("d", "end"), ("d", "num_bytes"))]
    columns += [[names[i] for i in numbers("I", panel["name"])], [KINDS[i] for i in numbers("B", panel["kind"])]]
    rows, spans = list(zip(*columns, strict=True)), []
    for track in panel["tracks"]:
        for start, end, num_bytes, name, kind in rows[track["first"] : track["last"]]:
            spans.append(span(start, end, track["rank"], LANES[track["lane"]], kind, name, int(num_bytes)))
    return spans


def test_the_arrays_hold_every_span():
    given = step()
    sent = TimelineExplorer(given).data
    assert sorted(decoded(sent["panels"][0], sent["names"]), key=repr) == sorted(given.spans, key=repr)


def test_a_timeline_starts_at_zero_and_the_longest_sets_the_axis():
    sent = TimelineExplorer(timeline(span(5, 7)), timeline(span(100, 103))).data
    assert [decoded(panel, sent["names"]) for panel in sent["panels"]] == [[span(0, 2)], [span(0, 3)]]
    assert sent["end"] == 3


def test_spans_of_a_row_never_overlap_and_take_the_first_free_row():
    spans = [span(0, 4), span(1, 2), span(1, 3), span(2, 5), span(4, 6)]
    assert rows_without_overlap(spans) == [[spans[0], spans[4]], [spans[1], spans[3]], [spans[2]]]


def test_messages_that_touch_share_a_row():
    spans = [span(0, 2), span(1.999, 3), span(2.9985, 2.9995), span(2.9999, 4)]
    assert rows_without_overlap(spans, 0.002) == [[spans[0], spans[1], spans[3]], [spans[2]]]
    assert [track["rows"] for track in TimelineExplorer(timeline(*spans)).data["panels"][0]["tracks"]] == [2, 2]


def test_idle_is_where_no_span_of_compute_is():
    spans = [span(10, 12), span(11, 11.5), span(13, 14), span(10, 20, lane="communication", kind="communication")]
    (idle,) = TimelineExplorer(timeline(*spans)).data["panels"][0]["idle"]
    assert (numbers("d", idle["start"]), numbers("d", idle["end"])) == ([2, 4], [3, 10])


def test_what_is_held_arrives_as_steps():
    given = step()
    for rank, held in zip(given.ranks, TimelineExplorer(given).data["panels"][0]["held"], strict=True):
        times, sums = numbers("d", held["times"]), numbers("d", held["sums"])
        assert times[0] == 0 and len(times) > 3
        for index, time in enumerate(times):
            sent = dict(zip(MEMORY_KINDS, sums[index * 6 : index * 6 + 6], strict=True))
            assert sent == {kind: getattr(given.holds(rank, time), kind) for kind in MEMORY_KINDS}
        assert sums[-6:-4] == [8 * MIB, 8 * MIB]  # at the end nothing has gone


def test_what_goes_before_the_end_goes():
    held = Holding(rank=0, name="x", kind="activations", num_bytes=7, start=11.0, end=12.0)
    panel = TimelineExplorer(timeline(span(10, 14), held=(held,))).data["panels"][0]["held"][0]
    assert numbers("d", panel["times"]) == [0, 1, 2]
    assert numbers("d", panel["sums"])[3::6] == [0, 7, 0]


def test_without_holdings_nothing_is_said_of_memory():
    explorer = TimelineExplorer(timeline())
    assert explorer.data["panels"][0]["held"] == []
    assert "holds" not in explorer.text


def test_colours_and_units_come_from_python():
    sent = TimelineExplorer(step()).data
    assert {kind: paint["fill"] for kind, paint in sent["paints"].items()} == {k: p.fill for k, p in PAINTS.items()}
    assert (1e-3, "ms") in sent["units"]["seconds"]
    for path in STATIC.iterdir():
        colours = {colour.lower() for colour in re.findall(r"#[0-9a-fA-F]{6}\b", path.read_text(encoding="utf-8"))}
        assert not colours & {paint.fill for paint in PAINTS.values()} - {"#0072b2"}  # the focus ring's fallback


def test_the_front_end_asks_nothing_of_the_network():
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8")
        asks = r"https?:|//\w+\.\w+|^\s*import\b|\bimport\(|@import|fetch\(|XMLHttpRequest|WebSocket"
        found = re.findall(asks, text, re.M)
        assert not found, path.name
    assert "export default" in TimelineView._esm


def test_the_play_head_is_read_out():
    explorer = TimelineExplorer(step(), timeline(span(50, 54, name="head"), source="emulated"))
    assert explorer.reading.startswith("Play head at 0 s, rank 0. predicted: computes forward; ")
    explorer.playhead = 3.5
    held = "10.5 MB = parameters 8.39 MB + gradients 2.10 MB"
    assert f"computes c; communicates all_reduce 0 (2.10 MB); holds {held}." in explorer.reading
    assert explorer.reading.endswith("emulated on this machine: computes head; communicates –.")
    explorer.playhead = 11.0
    assert "predicted: computes optimizer; communicates –; holds 16.8 MB" in explorer.reading
    assert explorer.reading.endswith("emulated on this machine: has ended.")
    explorer.selected_rank = 1
    assert "rank 1. " in explorer.reading and "emulated" not in explorer.reading
    assert explorer.reading in explorer.text


def test_what_the_learner_moves_can_be_set_and_is_sent():
    explorer = TimelineExplorer(step())
    assert explorer.zoom == (0.0, 11.0) and explorer.selected_rank == 0
    explorer.zoom = (2.0, 3.0)
    view = explorer.widget
    explorer.selected_rank = 1
    state = view.get_state(["zoom", "playhead", "selected_rank"])
    assert state == {"zoom": (2.0, 3.0), "playhead": 0.0, "selected_rank": 1}
    view.set_state({"zoom": [1.0, 2.0], "playhead": 1.5})  # as the browser does
    assert (explorer.zoom, explorer.playhead) == ((1.0, 2.0), 1.5)


def test_the_table_has_a_row_for_every_rank():
    rows = TimelineExplorer(step(), timeline(span(rank=5))).rows
    assert [row["rank"] for row in rows] == ["0", "1", "5"]
    times = {"computes for": "7.00 s", "exposed communication": "4.00 s", "computes nothing for": "4.00 s"}
    assert rows[0] == {"timeline": "predicted", "rank": "0", "messages": "3", "payload": "8.39 MB"} | times


def swapped():
    data = json.loads(timeline().to_json())
    data["spans"][0] |= {"start": 2.0, "end": 1.0}
    return data


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((), "got no timeline; give one or more"),
        ((Timeline(spans=(), source="recorded"),), "timeline 0 has no span, so there is nothing to show"),
        ((timeline(), 3), "argument 1 of TimelineExplorer is a int; give a Timeline, or the text that"),
        (([timeline()],), "argument 0 of TimelineExplorer is a list"),
        ((swapped(),), "timeline 0 cannot be read: a Span ends at 1.0 s, before its start at 2.0 s; are they swapped?"),
        ((json.dumps(swapped()),), "before its start at 2.0 s"),
        (("no json",), "timeline 0 is a text that is no JSON"),
        (("{}",), "holds no Timeline"),
        (({"record": "Timeline"},), "cannot be read"),
        (({"record": {1}},), "cannot be read"),
        ((timeline(span(end=float("inf"))),), "never starts or never ends"),
    ],
)
def test_bad_input_shows_a_sentence_in_the_pictures_place(given, sentence):
    explorer = TimelineExplorer(*given)
    assert sentence in explorer.error
    assert explorer.text == explorer.error and explorer.data == {}
    with pytest.raises(ValueError, match="."):
        _ = explorer.scene
    assert explorer._repr_mimebundle_()[0]["image/png"].startswith("iVBOR")
    assert 'setAttribute("role", "alert")' in TimelineView._esm


def test_a_recorded_run_comes_from_a_file():
    given = timeline(span(3, 4), title="a run")
    assert TimelineExplorer(given.to_json()).timelines == TimelineExplorer(json.loads(given.to_json())).timelines
    assert TimelineExplorer(given.to_json()).data["title"] == "a run"


def test_a_span_without_duration_is_no_reason_to_fail():
    explorer = TimelineExplorer(timeline(span(1, 1)))
    assert explorer.error == "" and explorer.data["end"] > 0
