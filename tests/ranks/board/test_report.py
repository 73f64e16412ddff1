"""What a failed run says of ranks that died, whatever else has happened."""

from __future__ import annotations

import pytest

from helpers.ranks.board.report import Report
from helpers.ranks.board.watch import RankState


@pytest.mark.parametrize("verdict", ["interrupted", "failed", "hang", "timeout"])
def test_a_death_is_reported_with_every_verdict(verdict, tmp_path):
    alive, dead = (RankState(rank, None, 0) for rank in range(2))
    dead.mark_dead()
    report = Report([alive, dead], cell=None, folder=str(tmp_path), world_size=2)
    report.exit_codes[1] = -6
    said = str(report.error(verdict))
    assert "rank 1 died: killed by SIGABRT" in said and "rank 1 had finished" not in said
