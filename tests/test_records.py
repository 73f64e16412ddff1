"""The records check themselves, survive JSON and compare."""

import pytest

from helpers.quantities.units import format_bytes, format_count, format_ratio, format_seconds, format_value
from helpers.records import CommEvent, CommLog, Holding, MemoryBreakdown, Span, Timeline, compare, traffic_by_axis
from helpers.records.comms import AxisOp
from helpers.specs.mesh import Mesh


def span(rank=0, start=0.0, end=1.0, lane="compute", kind="backward", **more):
    return Span(rank=rank, lane=lane, name="block", kind=kind, start=start, end=end, **more)


def message(rank=0, start=0.0, end=1.0, num_bytes=100):
    return span(rank, start, end, "communication", "communication", num_bytes=num_bytes)


def event(op="all_reduce", payload_bytes=400, rank=0, group_ranks=(0, 1, 2, 3), **more):
    fields = {"group": "0", "sequence": 0, "caller": "ddp.py:71", "start": 0.0, "end": 1.0, "dtype": "float32"}
    fields |= {"rank": rank, "op": op, "payload_bytes": payload_bytes, "group_ranks": group_ranks, "shape": (100,)}
    return CommEvent(**(fields | more))


def holding(rank=0, start=0.0, end=1.0, num_bytes=8, kind="gradients"):
    return Holding(rank=rank, name="block", kind=kind, num_bytes=num_bytes, start=start, end=end)


def timeline(*spans, source="predicted", **more):
    return Timeline(spans=spans, source=source, **more)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: span(start=2.0, end=1.0), "ends at 1.0 s, before its start at 2.0 s"),
        (lambda: span(start=float("nan")), "before its start"),
        (lambda: span(lane="disk"), "lane is 'disk', but it must be one of compute, communication"),
        (lambda: span(kind="sideways"), "kind is 'sideways'"),
        (lambda: span(rank=-1), "rank is -1, but it must be 0 or more"),
        (lambda: span(num_bytes=-5), "num_bytes is -5"),
        (lambda: timeline(span(), source="guessed"), "source is 'guessed'"),
        (lambda: timeline("span"), "holds a str, but it must hold Span records only"),
        (lambda: timeline(span()).for_rank(3), r"rank 3 has no span in this Timeline; its ranks are \[0\]"),
        (lambda: timeline(span()).busy(0, "disk"), "lane is 'disk'"),
        (lambda: Timeline.merge([]), "got 0 timelines"),
        (lambda: Timeline.merge([timeline(), timeline(source="recorded")]), "all of the same source"),
        (lambda: event(op="allreduce"), "op is 'allreduce', but it must be one of all_reduce"),
        (lambda: event(rank=7), r"rank 7 is not in its group_ranks \[0, 1, 2, 3\]"),
        (lambda: event(payload_bytes=-1), "payload_bytes is -1"),
        (lambda: event(start=3.0), "before its start"),
        (lambda: CommLog(events=(span(),)), "holds a Span, but it must hold CommEvent records only"),
        (lambda: CommLog().count("allreduce"), "op is 'allreduce'"),
        (lambda: CommLog().sent_bytes("pigeon"), "algorithm is 'pigeon', but it must be one of ring, tree"),
        (lambda: MemoryBreakdown(gradients=-3), "gradients is -3"),
        (lambda: Timeline.from_json(CommLog().to_json()), "holds no Timeline; give the text that Timeline.to_json"),
        (lambda: Timeline.from_json("[]"), "holds no Timeline"),
        (lambda: Timeline.from_json('{"record": "Timeline", "spans": [{"rank": 0}], "source": "predicted"}'), "fields"),
        (lambda: Timeline.from_json('{"record": "Timeline", "source": "predicted"}'), "missing 1 required"),
        (lambda: Timeline.from_json('{"record": "Timeline", "spans": 3, "source": "predicted"}'), "other fields"),
        (lambda: holding(start=2.0), "a Holding ends at 1.0 s, before its start at 2.0 s"),
        (lambda: holding(kind="forward"), "kind is 'forward', but it must be one of parameters, gradients"),
        (lambda: holding(num_bytes=-1), "num_bytes is -1"),
        (lambda: timeline(span(), held=(span(),)), "holds a Span, but it must hold Holding records only"),
        (lambda: timeline(span()).holds(3, 0.0), "rank 3 has no span"),
        (lambda: compare(timeline(), CommLog()), "a Timeline and a CommLog; give two records of one type"),
        (lambda: compare("a", "b"), "got a str as predicted"),
        (lambda: compare({"a bytes": 1}, {"a bytes": 1}, guess={"b bytes": 2}), "the guess names 'b bytes'"),
        (lambda: compare(1, 1)["size"], "no row 'size'; its rows are value"),
        (lambda: format_value(1, "miles"), "the unit is 'miles'"),
    ],
)
def test_bad_input_gets_a_sentence(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()


def test_exposed_communication_is_what_compute_does_not_cover():
    one = timeline(span(start=0, end=4), message(start=1, end=3), message(start=3.5, end=5), message(start=4.5, end=6))
    assert one.exposed_communication(0) == pytest.approx(2.0)
    assert one.idle(0) == pytest.approx(2.0)
    assert one.busy(0) == pytest.approx(4.0)
    assert one.busy(0, "communication") == pytest.approx(4.5)


def test_idle_counts_from_the_first_start_to_the_last_end_of_all_ranks():
    two = timeline(span(rank=0, start=1, end=3), span(rank=1, start=2, end=6))
    assert (two.start, two.end, two.duration, two.num_ranks) == (1, 6, 5, 2)
    assert (two.idle(0), two.idle(1)) == (3, 1)


def test_overlapping_spans_count_once():
    assert timeline(span(start=0, end=2), span(start=1, end=3), span(start=1, end=1.5)).busy(0) == 3


def test_shifted_to_zero_keeps_every_duration():
    moved = timeline(span(start=5, end=6), span(start=7, end=9)).shifted_to_zero()
    assert [(one.start, one.end) for one in moved.spans] == [(0, 1), (2, 4)]


def test_what_a_rank_holds_is_summed_by_kind():
    held = (holding(end=4, num_bytes=3, kind="parameters"), holding(start=1, end=4), holding(start=2, end=3))
    one = timeline(span(end=4), span(rank=1, end=4), held=(*held, holding(rank=1, num_bytes=100)))
    assert [one.holds(0, at).gradients for at in (0, 1, 2, 2.9, 3, 4, 5)] == [0, 8, 16, 16, 8, 8, 0]
    assert one.holds(0, 0.5) == MemoryBreakdown(parameters=3, instant="at 500 ms")


def test_what_runs_at_an_instant_starts_with_it_and_ends_before_it():
    one = timeline(span(end=2, kind="forward"), span(start=2, end=4), message(start=1, end=3), span(rank=1, end=4))
    assert [len(one.at(0, at)) for at in (0, 1, 2, 3, 4, 5)] == [1, 2, 2, 1, 1, 0]
    assert one.at(0, 2)[0].kind == "backward"


def test_what_is_held_moves_with_the_spans():
    first = timeline(span(start=5, end=6), held=(holding(start=5, end=6),))
    second = timeline(span(rank=1, start=5, end=7), held=(holding(rank=1, start=6, end=7),))
    both = Timeline.merge([first, second])
    assert both.held == first.held + second.held
    assert both.for_rank(1).held == second.held
    assert [(one.start, one.end) for one in both.shifted_to_zero().held] == [(0, 1), (1, 2)]


def test_a_timeline_saved_before_it_knew_of_memory_still_loads():
    text = timeline(span()).to_json().replace(', "held": []', "")
    assert "held" not in text and Timeline.from_json(text) == timeline(span())


def test_merge_joins_ranks_and_keeps_the_title():
    first = Timeline(spans=(span(rank=0),), source="recorded", title="a step")
    merged = Timeline.merge([first, timeline(span(rank=1), source="recorded")])
    assert (merged.ranks, merged.title, merged.source) == ((0, 1), "a step", "recorded")


@pytest.mark.parametrize(
    "record",
    [
        timeline(span(start=0.1, end=1 / 3), message(), held=(holding(start=0.1),)),
        CommLog(events=(event(), event("recv", peer=2, shape=()), event("reduce", reduce_op="SUM", peer=0))),
        CommLog(),
        MemoryBreakdown(parameters=7, instant="after backward"),
    ],
)
def test_json_round_trip(record):
    assert type(record).from_json(record.to_json()) == record


@pytest.mark.parametrize(
    ("op", "expected"),
    [("all_reduce", 600), ("all_gather", 1200), ("reduce_scatter", 300), ("broadcast", 300), ("send", 400)]
    + [("recv", 0), ("barrier", 0)],
)
def test_sent_bytes_follow_the_formulas(op, expected):
    log = CommLog(events=(event(op, 0 if op == "barrier" else 400),))
    assert log.sent_bytes() == expected


def test_derived_bytes_say_so_and_still_count():
    derived = CommLog(events=(event(payload_bytes=42_792_960),)).sent_bytes()
    assert str(derived) == repr(derived) == "64.2 MB (derived)"
    assert f"{derived:,}" == "64,189,440"
    assert derived + 1 == 64_189_441


def test_a_log_counts_by_op_and_by_rank():
    first, second = event(end=3.0), event("send", 8, rank=1, end=2.0, peer=0)
    log = CommLog.merge([CommLog(events=(first,)), CommLog(events=(second,))])
    assert log.ops() == ("send", "all_reduce")
    assert (log.count(), log.count("send"), log.payload_bytes(), log.payload_bytes("send")) == (2, 1, 408, 8)
    assert log.for_rank(1).count() == 1


@pytest.mark.parametrize("group", [(0, 2), (0, 2, 4)])  # a pair's own group, and pp's
def test_a_message_counts_on_its_whole_axis(group):
    log = CommLog(events=(event("send", 8, group_ranks=group, peer=2), event(group_ranks=(0, 1), reduce_op="sum")))
    ops = (AxisOp("pp", "send", 3, 8), AxisOp("tp", "all_reduce", 2, 400))
    assert traffic_by_axis(log, Mesh(pp=3, tp=2)).ops == ops


def test_memory_total():
    held = MemoryBreakdown(parameters=1, gradients=2, optimizer=4, activations=8, buffers=16, temporaries=32)
    assert held.total == 63


def test_compare_sets_predicted_measured_and_guess_side_by_side():
    table = compare({"sent bytes": 64_189_440}, {"sent bytes": 64_189_440.0, "steps": 3}, guess=42_792_960)
    assert table["sent bytes"].ratio == 1.0
    assert str(table).splitlines() == [
        "            your guess  predicted  measured  measured / predicted",
        "sent bytes     42.8 MB    64.2 MB   64.2 MB                  1.00",
        "steps                –          –         3                     –",
    ]
    assert "<th scope=" in table._repr_html_()


def test_compare_takes_every_record():
    one, two = timeline(span(), message(start=0.5, end=1.5)), timeline(span(end=2), source="recorded")
    assert compare(one, two)["duration"].ratio == pytest.approx(2 / 1.5)
    assert compare(CommLog(events=(event(),)), CommLog(events=(event(),)))["payload"].ratio == 1
    assert compare(MemoryBreakdown(parameters=4), MemoryBreakdown(parameters=8))["parameters"].ratio == 2
    assert compare(2, 3.0)["value"].ratio == 1.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bytes(42_760_000), "42.8 MB"),
        (format_bytes(999), "999 B"),
        (format_bytes(1e9), "1.00 GB"),
        (format_bytes(2**30, binary=True), "1.00 GiB"),
        (format_seconds(0.0031), "3.10 ms"),
        (format_seconds(0.0142), "14.2 ms"),
        (format_seconds(12e-6), "12.0 µs"),
        (format_seconds(0), "0 s"),
        (format_seconds(90), "1.50 min"),
        (format_count(10_698_240), "10,698,240"),
        (format_count(2.5), "2.50"),
        (format_ratio(None), "–"),
    ],
)
def test_numbers_say_their_unit(text, expected):
    assert text == expected


def test_a_profile_has_more_lanes_than_two_and_they_count_as_neither_compute_nor_communication():
    two = timeline(span(), span(start=1.0, end=2.0, lane="communication", kind="communication"))
    more = [span(start=2.0, end=5.0, lane=lane, kind="other") for lane in ("data", "waiting", "host")]
    profile = timeline(*two.spans, *more)
    assert two.lanes == ("compute", "communication")
    assert profile.lanes == ("compute", "communication", "waiting", "host", "data")
    assert profile.exposed_communication(0) == two.exposed_communication(0) == 1.0
    assert (profile.busy(0), profile.busy(0, "waiting"), profile.idle(0)) == (1.0, 3.0, 4.0)
    assert Timeline.from_json(profile.to_json()) == profile
