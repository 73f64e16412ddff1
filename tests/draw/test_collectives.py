"""The states of a collective, and one of its steps: frames and arrows say what the schedule says."""

import re
from dataclasses import replace

import pytest

from helpers.draw import Line, Rect, collective_step_scene
from helpers.predict.traffic.algorithms import schedule
from tests.draw.scenes import SCENES, tooltips


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


def step_scene(collective, algorithm, num_ranks, number):
    plan = schedule(collective, num_ranks, algorithm)
    states = list(plan.replay())
    before, after, moves = states[number], states[number + 1], plan.step(number)
    return moves, collective_step_scene(before, after, moves, title="One step", step=number + 1)


def framed(scene, stroke):
    return [item for item in scene.items if isinstance(item, Rect) and item.stroke == stroke and item.height > 10]


@pytest.mark.parametrize(
    ("collective", "algorithm", "num_ranks", "number"),
    [
        ("all_reduce", "ring", 4, 2),
        ("all_reduce", "ring", 8, 9),
        ("all_reduce", "halving_doubling", 6, 1),
        ("broadcast", "tree", 8, 2),
        ("all_gather", "ring", 2, 0),
    ],
)
def test_each_message_is_an_arrow_from_its_sender_to_its_receiver(collective, algorithm, num_ranks, number):
    messages, scene = step_scene(collective, algorithm, num_ranks, number)
    rows = {label.text: label.y for label in scene.labels() if re.fullmatch(r"rank \d+", label.text)}
    arrows = {(item.y1, item.y2) for item in scene.items if isinstance(item, Line) and item.arrow}
    assert arrows == {(rows[f"rank {one.sender}"], rows[f"rank {one.receiver}"]) for one in messages}
    assert len(framed(scene, "communication")) == len(messages)
    assert len(framed(scene, "ink")) == sum(one.last - one.first for one in messages)


def test_words_of_the_messages():
    messages, scene = step_scene("all_reduce", "ring", 4, 2)
    texts = [label.text for label in scene.labels()]
    assert {"before step 3", "after step 3", "the receiver adds", "chunk 1 to rank 1"} <= set(texts)
    assert scene.summary.startswith("Rank 0 sends chunk 1 to rank 1, which adds it.")
    assert scene.summary.endswith("Complete cells: 4 of 16.")
    _, last = step_scene("all_reduce", "ring", 4, 5)
    assert "the receiver keeps a copy" in [label.text for label in last.labels()]
    assert last.summary.endswith("Complete cells: 16 of 16.")
    _, halves = step_scene("all_reduce", "halving_doubling", 4, 0)
    assert "chunks 2–3 to rank 2" in [label.text for label in halves.labels()]


def test_a_rank_may_send_several_messages():
    messages, _ = step_scene("broadcast", "tree", 4, 0)
    states = list(schedule("broadcast", 4, "tree").replay())
    two = [messages[0], replace(messages[0], receiver=2)]
    scene = collective_step_scene(states[0], states[1], two, title="One step")
    assert "2 messages" in [label.text for label in scene.labels()]
    assert "Rank 0 sends everything to rank 2" in scene.summary


def test_a_state_at_rest_keeps_the_geometry():
    messages, scene = step_scene("all_reduce", "ring", 4, 2)
    state = list(schedule("all_reduce", 4, "ring").replay())[-1]
    rest = collective_step_scene(state, state, title="One step")
    assert rest.height == scene.height
    assert "nothing left to send" in [label.text for label in rest.labels()]


def test_bad_input_gets_a_sentence():
    messages, _ = step_scene("all_reduce", "ring", 4, 0)
    four, three = (list(schedule("all_reduce", n, "ring").replay())[0] for n in (4, 3))
    with pytest.raises(ValueError, match=r"states of \(ranks, chunks\) \[\(3, 3\), \(4, 4\)\]"):
        collective_step_scene(four, three, title="odd")
    with pytest.raises(ValueError, match="both need the same, at least 1"):
        collective_step_scene([], [], title="nothing")
    with pytest.raises(ValueError, match="from rank 3 to rank 0 does not fit 3 ranks and 3 chunks"):
        collective_step_scene(three, three, [messages[3]], title="odd")
    with pytest.raises(ValueError, match="chunks 0 to 0 from rank 0 to rank 0 does not fit"):
        collective_step_scene(three, three, [replace(messages[0], receiver=0, first=0, last=1)], title="self")
