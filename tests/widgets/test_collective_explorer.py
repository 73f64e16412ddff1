"""The explorer works without a front end: every dial changes what is shown, every step adds up, a picture stays."""

import pytest

from helpers.draw import collective_scene
from helpers.predict.traffic.algorithms import COLLECTIVES, algorithms
from helpers.widgets import CollectiveExplorer
from helpers.widgets.collective_explorer import ALL, ONE, messages_text

KNOWN = [(collective, by) for collective in COLLECTIVES for by in algorithms(collective)]


@pytest.fixture
def explorer():
    return CollectiveExplorer()


def test_a_step_says_what_happens_and_what_it_took_so_far(explorer):
    explorer.step.value = 2
    assert explorer.sentence == (
        "Step 2 of 6: each rank sends 1 chunk (10.0 MB) to its right neighbour, which adds it. "
        "Sent so far: 20.0 MB of 60.0 MB a rank, 80.0 MB of 240 MB in all. Time so far: 16.1 ms of 48.2 ms."
    )
    assert explorer.rows[1] == {"rank": "1", "sent": "20.0 MB", "received": "20.0 MB", "complete chunks": "0 of 4"}


def test_all_steps_say_bytes_latency_and_the_winner(explorer):
    explorer.view.value = ALL
    assert explorer.sentence == (
        "A buffer of 40.0 MB. The busiest rank sends 60.0 MB, all together 240 MB. "
        "Predicted 48.2 ms, latency 180 µs of it. Fastest here: halving-doubling."
    )
    assert [row["complete chunks"] for row in explorer.rows] == ["4 of 4"] * 4


@pytest.mark.parametrize(("collective", "algorithm"), KNOWN)
def test_the_last_step_has_taken_all_of_the_time(explorer, collective, algorithm):
    explorer.collective.value, explorer.algorithm.value = collective, algorithm
    for n in range(2, 9):
        explorer.ranks.value = n
        explorer.step.value = explorer.step.max
        whole, so_far = explorer.sentence.split("Time so far: ")[1].rstrip(".").split(" of ")
        assert whole == so_far and f"on {n} ranks" in explorer.widget.html.value


@pytest.mark.parametrize(
    ("what", "step", "said"),
    [
        (("all_reduce", "tree", 8), 6, "each of 4 ranks sends the whole buffer (8 B) to a rank 4 away, which keeps a"),
        (("all_reduce", "halving_doubling", 6), 1, "rank 0 sends the whole buffer (8 B) to rank 1 and rank 2 to rank"),
        (("all_reduce", "halving_doubling", 7), 3, "each of 4 ranks sends 1 chunk (2 B) to its partner, which adds it"),
        (("all_reduce", "halving_doubling", 8), 1, "each rank sends 4 chunks (4 B) to a rank 4 away, which adds it"),
        (("reduce", "tree", 5), 1, "rank 4 sends the whole buffer (8 B) to rank 0, which adds it"),
        (("broadcast", "tree", 4), 2, "rank 0 sends the whole buffer (8 B) to rank 2 and rank 1 to rank 3; both keep"),
    ],
)
def test_the_words_of_a_step(what, step, said):
    collective, algorithm, ranks = what
    plan = CollectiveExplorer(collective, algorithm=algorithm, ranks=ranks).plan
    assert messages_text(plan, step, 8).startswith(said)


def test_a_collective_offers_its_own_algorithms_and_keeps_one_that_both_know(explorer):
    explorer.algorithm.value = "tree"
    explorer.collective.value = "broadcast"
    assert explorer.algorithm.value == "tree" and len(explorer.algorithm.options) == 1
    explorer.collective.value = "all_gather"
    assert explorer.algorithm.value == "ring" and "all-gather on 4 ranks by ring" in explorer.widget.html.value.lower()
    explorer.collective.value = "all_reduce"
    assert [by for _, by in explorer.algorithm.options] == ["ring", "tree", "halving_doubling"]


def test_a_saved_notebook_keeps_all_steps_and_a_stable_text(explorer):
    explorer.step.value = 5
    states = list(explorer.plan.replay())
    assert len(states) == 7 and explorer.saved.items[:-2] == collective_scene(states, explorer.saved.title).items
    assert [label.text for label in explorer.saved.labels()][-2].startswith("A buffer of 40.0 MB.")


def test_it_opens_on_the_first_step_of_what_was_asked_for():
    explorer = CollectiveExplorer("reduce_scatter", ranks=3)
    assert (explorer.view.value, explorer.step.value) == (ONE, 1) and "Step 1 of 2" in explorer.sentence


@pytest.mark.parametrize(("step", "sums"), [(1, 0), (3, 0 + 4), (4, 4 + 8), (6, 12 + 16)])
def test_a_step_shows_what_stands_before_it_and_after_it(explorer, step, sums):
    """A ring of 4 completes a chunk a rank with step 3 and one more with each later step."""
    explorer.step.value = step
    texts = [label.text for label in explorer.scene.labels()]
    assert texts.count("Σ") == sums and f"before step {step}" in texts


def test_the_steps_are_off_where_all_of_them_are_shown():
    explorer = CollectiveExplorer(algorithm="tree", ranks=4)
    assert not explorer.step.disabled
    explorer.view.value = "all"
    assert explorer.step.disabled
