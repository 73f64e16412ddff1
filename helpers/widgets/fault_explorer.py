"""Provides FaultExplorer, which simulates a week of a job that fails, and says how often it should save a checkpoint.

Dials choose nodes, failure rate, and the times for saving and repairing. Chapter 12 uses it.

Explorer, the base class, shows `sentence`, `scene` (a picture as plain data) and `rows` (a table), and computes them
anew whenever a dial changes. A ValueError in one of them becomes a message instead of the picture. A saved notebook
keeps TEXT and a picture.
"""

from __future__ import annotations

from helpers.draw import Scene
from helpers.draw.chapters.fault_tolerance import duration_text, effective_time_scene, week_scene
from helpers.draw.scene import stacked_scene
from helpers.learner.words import book
from helpers.predict import failures
from helpers.predict.failures import DAY, WEEK
from helpers.widgets.controls import dial
from helpers.widgets.explorer import Explorer, Rows

NODES = (1, 8, 64, 256, 512, 1024, 2048, 4096, 8192, 16_384)
LLAMA3 = 419 / 54 / 2048  # failures in 54 days on 2,048 nodes (The Llama 3 Herd of Models, section 3.3.4)
# Failures per node and day. RSC1 and RSC2 are two clusters of Meta; the first and the last rate are chosen freely.
RATES = (0.5e-3, failures.META_RSC2, LLAMA3, failures.META_RSC1, 20e-3)
# Values of the dials, in seconds.
SAVES = (1, 5, 10, 30, 60, 120, 300, 600)
REPAIRS = (10, 60, 120, 300, 600, 1200, 3600)
INTERVALS = (10, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 21_600, 43_200)
GPUS_PER_NODE = 8
words = book("failures").section("explorer")  # the texts that are shown, by name: learner/words/failures.yaml


class FaultExplorer(Explorer):
    """What failures cost a job in a week. Without a front end: `.interval.value = 600`, then `.text`.

    Dials: nodes (of 8 GPUs), rate (failures per node and day), save, repair and interval, the last three in seconds.
    seed: chooses the week; that of seed 2 is close to the average. The last three dials do not change the failures.
    """

    TEXT = "[widget] FaultExplorer: a week of a job, with dials for nodes, failures, save, repair and interval"

    def __init__(self, *, seed: int = 2) -> None:
        self._seed = seed
        # The texts named as tooltips say in a few words what each dial means.
        # The rate is displayed as the time from one failure of a node to its next.
        rates = [(duration_text(DAY / rate), rate) for rate in RATES]
        self.nodes = dial(NODES, 2048, words("nodes"), label="{:,}".format, tooltip=words("stops"))
        self.rate = dial(rates, failures.META_RSC1, words("rate"), tooltip=words("per"))
        self.save = dial(SAVES, 60, words("save"), label=duration_text, tooltip=words("stands"))
        self.repair = dial(REPAIRS, 600, words("repair"), label=duration_text, tooltip=words("until"))
        self.interval = dial(INTERVALS, 3600, words("interval"), label=duration_text, tooltip=words("between"))
        super().__init__((self.nodes, self.rate, self.save, self.repair, self.interval))

    @property
    def mtbf(self) -> float:
        """Mean seconds between failures of the job."""
        return failures.mtbf(nodes=self.nodes.value, per_node_day=self.rate.value)

    @property
    def week(self) -> failures.Week:
        """The simulated week for the dials' values."""
        return self._week(self.interval.value)

    @property
    def intervals(self) -> dict[str, float]:
        """Seconds of work between two saves: the dial's value, and what each formula recommends."""
        save = self.save.value
        return {
            "yours": self.interval.value,
            "young": failures.young_interval(save, self.mtbf),
            "daly": failures.daly_interval(save, self.mtbf),
            "availability": failures.availability_interval(save, self.mtbf, self.repair.value),
        }

    def effective(self, interval: float) -> float:
        """The share of the time that is useful work with this interval, by the closed formula."""
        return failures.effective_time(interval=interval, **self._job)

    @property
    def _job(self) -> dict[str, float]:
        """The arguments of the formulas, in seconds."""
        return {"mtbf": self.mtbf, "save": self.save.value, "repair": self.repair.value}

    def _week(self, interval: float) -> failures.Week:
        """The simulated week with this interval between two saves."""
        job = {"nodes": self.nodes.value, "per_node_day": self.rate.value, "seed": self._seed}
        return failures.simulate_week(interval=interval, save=self.save.value, repair=self.repair.value, **job)

    @property
    def scene(self) -> Scene:
        """The week above, the curve below."""
        title = words("title", nodes=self.nodes.value)
        curve = effective_time_scene(interval=self.interval.value, **self._job)
        return stacked_scene(week_scene(self.week, title=title), curve, title=title)

    @property
    def sentence(self) -> str:
        """How often the job fails, how much of the week is useful work, and what the best interval would give."""
        nodes, interval, useful = self.nodes.value, self.interval.value, self.week.shares["work"]
        best = self.intervals["daly"]
        share, most = self.effective(interval), self.effective(best)
        # An interval within one percent of the best one is called good.
        advice = words("better", interval=duration_text(best), share=most) if most > share + 0.01 else words("good")
        lost = failures.lost_gpu_hours(gpus=GPUS_PER_NODE * nodes, effective=useful, seconds=WEEK)
        hours = float(f"{lost:.2e}")  # rounded to three digits
        shown = {"mtbf": duration_text(self.mtbf), "interval": duration_text(interval), "advice": advice}
        return words("sentence", nodes=nodes, share=share, week=useful, hours=hours, **shown)

    @property
    def rows(self) -> Rows:
        """The dial's interval and those of the formulas, each with its share of useful work."""
        return [
            {
                words("formula"): words(name),
                words("work"): duration_text(seconds),
                words("kept"): f"{self.effective(seconds):.1%}",
                words("this_week"): f"{self._week(seconds).shares['work']:.1%}",
            }
            for name, seconds in self.intervals.items()
        ]
