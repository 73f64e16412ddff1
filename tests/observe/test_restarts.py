"""A job under torchrun that loses a node, goes on without it, and has it back: the curve is the undisturbed one.

That starts eight processes which import torch. Chapter 12 does it whenever it runs, and holds the losses and the three
generations; here it is slow.
"""

import json
import tempfile

import psutil
import pytest

from helpers.observe.restarts import JobGeneration, _read_lines, node_dies, undisturbed


@pytest.fixture
def left(monkeypatch, tmp_path):
    """left(): the processes of this test's jobs, whose folders lie in its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def find() -> list[int]:
        every = psutil.process_iter(["cmdline"])
        return [one.pid for one in every if str(tmp_path) in " ".join(one.info["cmdline"] or ())]

    return find


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_agents_lose_a_node_go_on_with_one_and_have_it_back(left):
    job = node_dies(at_step=4, back_at=6, steps=7, save_every=2)
    starts = [(one.ranks, one.after, one.last_step) for one in job.generations]
    assert starts == [(2, 0, 3), (1, 2, 5), (2, 4, 7)]
    assert job.losses == pytest.approx(undisturbed(7), abs=1e-10) and job.done_again == 2
    assert job.returncodes == (-9, 0, 0) or job.returncodes == (0, -9, 0), "either agent may have held rank 1"
    assert str(job).splitlines()[1] == "generation 1: 1 rank, steps 3 to 5"
    assert not left()


def test_without_restarts_a_job_that_never_ends_is_given_up_and_nothing_of_it_is_left(left):
    with pytest.raises(TimeoutError, match="had not ended after 0.3 s. Its ranks said "):
        node_dies(max_restarts=0, limit=0.3)
    assert not left()
    with pytest.raises(ValueError, match="max_restarts=-1: give 0 or more"):
        node_dies(max_restarts=-1)


@pytest.mark.parametrize("when", [{"at_step": 0}, {"at_step": 13}, {"back_at": 6}, {"back_at": 13}])
def test_a_death_or_a_return_at_no_step_is_a_sentence(when):
    with pytest.raises(ValueError, match="give steps from 1 to 12, first the death"):
        node_dies(**when)


def test_what_happened_is_read_from_the_lines_of_rank_0():
    """A node that was early waits for the other, does no step, and is no generation."""
    said = [
        {"rank": 0, "ranks": 1, "after": 0},
        {"rank": 0, "ranks": 2, "after": 0},
        {"rank": 1, "step": 1, "loss": 4.0},
    ]
    said += [
        {"rank": 0, "step": 1, "loss": 4.0},
        {"rank": 0, "ranks": 1, "after": 0},
        {"rank": 0, "step": 1, "loss": 4.0},
    ]
    job = _read_lines([json.dumps(one) for one in said], (0, -9), 1.0)
    assert job.generations == (
        JobGeneration(number=0, ranks=2, after=0, last_step=1),
        JobGeneration(number=1, ranks=1, after=0, last_step=1),
    )
    assert job.losses == {1: 4.0} and job.done_again == 1 and len(job.lines[1]) == 1


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_agents_on_one_machine_lose_a_node_twenty_times_and_never_hang():
    expected = undisturbed()
    for _ in range(20):
        job = node_dies()
        assert [one.ranks for one in job.generations] == [2, 1]
        assert job.losses == pytest.approx(expected, abs=1e-10)
