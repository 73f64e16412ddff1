"""What is read along are the heartbeats of every rank, in the order of their steps."""

from helpers.elastic import Job
from helpers.elastic.listening import listen


def test_every_rank_is_heard_until_its_generation_is_over():
    with Job(ranks=2, steps=6, save_every=6) as job:
        rows = listen(job.start())
        assert job.wait().steps == 6
    assert [*rows] == [0, 1] and all(row == sorted(row) and row[-1][1] <= 6 for row in rows.values())
