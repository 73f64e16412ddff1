"""The explorer works without a front end: its sentence, table and week follow the dials and agree with predict."""

import pytest

from helpers.predict.failures import effective_time, simulate_week
from helpers.widgets import FaultExplorer


def test_it_starts_with_a_save_each_hour_and_says_what_is_better():
    shown = FaultExplorer()
    assert shown.sentence.startswith("Of 2,048 nodes one fails every 1.8 h on average. Saving every 1 h keeps 66.8%")
    assert shown.sentence.endswith("Every 14 min would keep 79.3%.")
    shown.interval.value = 900
    assert shown.sentence.endswith("No other interval keeps one percent more.")
    assert shown.effective(900) == effective_time(interval=900, save=60, repair=600, mtbf=shown.mtbf)


def test_the_table_has_the_formulas_and_a_shorter_save_shortens_all_of_them():
    shown = FaultExplorer()
    names = [row["interval by"].partition(":")[0] for row in shown.rows]
    assert names == ["your setting", "Young", "Daly", "availability"]
    assert [row["work between two saves"] for row in shown.rows] == ["1 h", "14.7 min", "14 min", "15.4 min"]
    before = shown.intervals
    shown.save.value = 10
    assert all(shown.intervals[name] < before[name] for name in ("young", "daly", "availability"))
    shown.repair.value = 3600
    assert shown.intervals["availability"] > shown.intervals["young"]


def test_the_same_failures_strike_whatever_the_interval_is():
    shown = FaultExplorer(seed=3)
    before = shown.week
    shown.interval.value = 600
    assert shown.week.failures == before.failures and shown.week.shares["work"] > before.shares["work"]
    assert shown.week == simulate_week(nodes=2048, per_node_day=6.5e-3, interval=600, save=60, repair=600, seed=3)


def test_the_gpu_hours_are_those_of_the_week_shown():
    shown = FaultExplorer(seed=3)
    said = int(shown.sentence.partition(" GPU-hours")[0].rpartition(" ")[2].replace(",", ""))
    assert said == pytest.approx(16_384 * 7 * 24 * (1 - shown.week.shares["work"]), rel=0.005)
