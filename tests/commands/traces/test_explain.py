"""What a step of a known make is said to be: its parts, the rank that is late and why, clocks, gaps, the path."""

from __future__ import annotations

import json

import pytest

from helpers.__main__ import main
from helpers.commands.traces import compare, explain, read, report_lines
from helpers.commands.traces.cli import comparison_lines
from helpers.learner.words.wrapping import width


def slow(who, what, seconds, when=lambda step: True):
    return lambda rank, step, part: seconds * (rank == who and part == what and when(step))


def test_the_parts_add_up_to_the_step(made):
    run = read(made(noise=0.001, extra=slow(1, "compute", 0.02)))
    explanation = explain(run)
    for rank, row in explanation.by_rank.items():
        assert sum(row.values()) == pytest.approx(sum(step.end - step.start for step in run.steps[rank]) / 20, abs=1e-6)
    assert sum(explanation.parts.values()) == pytest.approx(explanation.seconds) and explanation.seconds > 0.09


def test_a_step_without_noise_is_told_to_the_microsecond(made):
    """One rank computes 20 ms longer, 14 of them before the first message."""
    run = read(made(extra=slow(2, "compute", 0.020)))
    explanation = explain(run)
    assert explanation.by_rank[2]["compute"] - explanation.by_rank[0]["compute"] == pytest.approx(0.020, abs=1e-5)
    assert explanation.by_rank[0]["waiting"] == pytest.approx(0.020, rel=0.1)
    assert explanation.by_rank[2]["waiting"] < 1e-4
    assert explanation.by_rank[0]["data"] == pytest.approx(0.005, abs=1e-5)
    # The second message; the first is hidden.
    assert explanation.by_rank[0]["communication"] == pytest.approx(0.004, abs=2e-4)
    assert explanation.hidden > 0.004
    waits = [one for one in run.timeline.spans if one.lane == "waiting" and one.rank == 0]
    moves = [one for one in run.timeline.spans if one.lane == "communication" and one.rank == 0]
    assert sum(one.duration for one in moves) / 40 == pytest.approx(0.004, abs=1e-6)
    assert {one.name for one in waits} == {"all_reduce ← 2"} and run.timeline.lanes[0] == "compute"


@pytest.mark.parametrize("noise", [0.0, 0.003])
@pytest.mark.parametrize(("part", "cause"), [("compute", "compute"), ("data", "data"), ("link", "communication")])
def test_the_straggler_has_its_rank_and_its_cause(made, part, cause, noise):
    found = explain(read(made(extra=slow(3, part, 0.025), noise=noise))).straggler
    assert (found.rank, found.cause, found.is_seldom) == (3, cause, False)
    assert found.excess[cause] > 0.015


@pytest.mark.parametrize("part", ["compute", "data"])
def test_one_step_in_ten_is_told_with_its_rhythm(made, part):
    found = explain(read(made(extra=slow(1, part, 0.06, lambda step: step % 10 == 4), noise=0.002))).straggler
    assert (found.rank, found.cause, found.is_seldom) == (1, part, True)
    assert found.steps == (9, 19) and found.period == 10


@pytest.mark.parametrize(("steps", "is_short"), [(3, True), (20, False)])
def test_a_short_window_says_what_it_cannot_show(made, steps, is_short):
    said = report_lines(explain(read(made(steps=steps))), 200)
    assert any("A window of 3 steps cannot show" in line for line in said) == is_short


def test_ranks_that_take_turns_have_no_straggler(made):
    assert explain(read(made(noise=0.004))).straggler is None


def test_the_critical_path_runs_through_the_straggler(made):
    explanation = explain(read(made(extra=slow(2, "compute", 0.020))))
    rank, part, seconds = explanation.path[0]
    assert (rank, part) == (2, "compute") and seconds > 0.07
    assert sum(seconds for *_, seconds in explanation.path) == pytest.approx(explanation.seconds, rel=0.02)


def test_an_operator_beyond_the_lists_end_is_counted_and_compared(made):
    """aten::add_ takes equally long in both runs; in the second, more operators than are listed take longer."""
    explanations = []
    for name, rows in (("one", [("big", 29, 40e3)]), ("other", [("big", 29, 40e3), ("new", 7, 8e3)])):
        folder = made(name=name, steps=4)
        for path in folder.iterdir():
            data = json.loads(path.read_text())
            fields = {"ph": "X", "cat": "cpu_op", "pid": 7, "ts": data["traceEvents"][0]["ts"], "args": {}}
            for kind, count, dur in rows:
                data["traceEvents"] += [
                    fields | {"name": f"{kind}::{index}", "tid": f"{kind}{index}", "dur": dur} for index in range(count)
                ]
            path.write_text(json.dumps(data))
        explanations.append(explain(read(folder)))
    before, after = compare(*explanations).get("aten::add_", (0.0018, 0.0018))
    assert before == pytest.approx(after) == pytest.approx(0.0018)
    assert {operator.name for operator in explanations[1].operators} >= {"aten::add_", "new::6"}
    found = explanations[1].as_dict()
    assert (len(found["operators"]), found["operators_left_out"]) == (32, 7)
    (row,) = (line.split() for line in report_lines(explanations[1]) if line.startswith("  33 more"))
    assert row[2:4] == ["266", "ms"]


def test_gaps_and_operators_are_those_of_the_step(made):
    explanation = explain(read(made(extra=slow(0, "host", 0.030, lambda step: step == 3))))
    longest = explanation.gaps[0]
    assert (longest.rank, longest.step, longest.seconds) == (0, 8, pytest.approx(0.031, abs=2e-4))
    first, second = explanation.operators[:2]
    assert (first.name, first.calls) == ("AddmmBackward0", 2.0) and first.seconds == pytest.approx(0.036)
    assert (second.name, second.shapes) == ("aten::linear", "[[4, 64]]")


# -- clocks ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("drift", [0.0, 4e-5])
def test_clocks_of_other_machines_are_put_together(made, drift):
    clocks = {1: (0.050, drift), 2: (-0.050, -drift), 3: (0.003, 0.0)}
    extra = slow(2, "compute", 0.020)
    run = read(made(extra=extra, clocks=clocks, one_host=False, noise=0.001, steps=50))
    for rank, (offset, slope) in clocks.items():
        for at in (0.0, 2.5, 5.0):  # seconds: of the window's start, middle and end
            assert run.clocks[rank].to_first_clock(at + offset + slope * at) == pytest.approx(at, abs=5e-4), rank
    explanation = explain(run)
    assert (explanation.straggler.rank, explanation.straggler.cause) == (2, "compute")
    assert "Clocks were aligned: rank 1 was " in "\n".join(report_lines(explanation))


def test_ranks_of_one_machine_share_its_clock(made):
    """A slow link looks like a clock that is ahead; on one machine nobody has to guess."""
    run = read(made(extra=slow(3, "link", 0.025)))
    assert all(clock.offset == 0 and clock.num_collectives == 40 for rank, clock in run.clocks.items() if rank)
    moved = read(made(name="moved", clocks={1: (0.050, 0.0)}, noise=0.001))
    assert moved.clocks[1].offset == pytest.approx(0.050, abs=1e-3)  # its messages disagree with one clock


# -- words -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("seldom", [False, True])
def test_the_lines_fit_a_terminal(made, monkeypatch, lang, seldom):
    monkeypatch.setenv("RANKS_LANGUAGE", lang)
    explanation = explain(read(made(extra=slow(1, "data", 0.06, lambda step: not seldom or step % 10 == 4))))
    lines = report_lines(explanation, 80)
    assert all(width(line) <= 84 for line in lines), max(lines, key=width)
    assert ("rank 1" in "\n".join(lines)) and ({"en": "loads data", "zh": "加载数据"}[lang] in "\n".join(lines))
    assert ("10" in "".join(lines[-30:])) or not seldom


def test_the_report_and_the_comparison_end_with_what_is_not_looked_at(made):
    explanation = explain(read(made(steps=4)))
    for lines in (report_lines(explanation), comparison_lines(explanation, explanation)):
        assert lines[-1].startswith("Not looked at: ") and len(lines[-1]) <= 80


def test_a_comparison_has_the_notes_of_both_and_a_dash_for_an_operator_that_one_lacks(made):
    one, other = made(steps=4), made(name="other", steps=4)
    for path in other.iterdir():
        path.write_text(path.read_text().replace("aten::linear", "aten::conv2d"))
        if "worker3" in path.name:
            path.unlink()
    text = "\n".join(comparison_lines(*(explain(read(folder)) for folder in (one, other))))
    assert "The folder has only ranks 0, 1 and 2 of 4" in text
    for name, columns in (("aten::linear", ["24.0", "ms", "–", "–"]), ("aten::conv2d", ["–", "24.0", "ms", "–"])):
        (row,) = (line.split() for line in text.split("\n") if name in line)
        assert row[1:] == columns


def test_the_command_says_writes_and_compares(made, capsys, tmp_path):
    one, other = made(), made(name="other", extra=slow(1, "compute", 0.02))
    assert main(["explain", str(other), "--perfetto", str(tmp_path / "merged.json")]) == 0
    assert "The others wait for rank 1" in capsys.readouterr().out
    written = json.loads((tmp_path / "merged.json").read_text())
    names = {event["args"]["name"] for event in written["traceEvents"] if event["ph"] == "M"}
    assert {"rank 3", "waiting", "data", "host"} <= names
    assert main(["explain", str(one), str(other)]) == 0
    assert f"\n\n{other.stem}:\nThe others wait for rank 1" in capsys.readouterr().out
    assert main(["explain", str(one), str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    before, after = found["compared"]["compute"]
    assert after - before == pytest.approx(0.005, abs=1e-4) and found["explained"][1]["straggler"]["rank"] == 1
    before, after = compare(explain(read(one)), explain(read(other)))["AddmmBackward0"]
    assert after - before == pytest.approx(0.003, abs=1e-4)
