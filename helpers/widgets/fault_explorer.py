"""The dials of chapter 12: nodes, failures, saves and repairs; a week of the job, and how often it should save."""

from __future__ import annotations

from helpers.draw import Scene
from helpers.draw.failures import duration_text, effective_time_scene, week_scene
from helpers.draw.scene import stacked_scene
from helpers.learner.words import book
from helpers.predict import failures
from helpers.predict.failures import DAY, WEEK
from helpers.widgets.dials import dial
from helpers.widgets.explorer import Explorer, Rows

NODES = (1, 8, 64, 256, 512, 1024, 2048, 4096, 8192, 16_384)
LLAMA3 = 419 / 54 / 2048
RATES = (0.5e-3, failures.META_RSC2, LLAMA3, failures.META_RSC1, 20e-3)  # per node and day
SAVES = (1, 5, 10, 30, 60, 120, 300, 600)
REPAIRS = (10, 60, 120, 300, 600, 1200, 3600)
INTERVALS = (10, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 21_600, 43_200)
GPUS = 8  # of a node
say = book("failures").section("explorer")


class FaultExplorer(Explorer):
    """What failures cost a job in a week. Without a front end: `.interval.value = 600`, then `.text`.

    Dials: nodes (of 8 GPUs), rate (failures per node and day), save, repair and interval, the last three in seconds.
    seed: which week; that of 2 is much like the average. The same failures strike whatever the last three dials say.
    """

    TEXT = "[widget] FaultExplorer: a week of a job, with dials for nodes, failures, save, repair and interval"

    def __init__(self, *, seed: int = 2) -> None:
        self._seed = seed
        rates = [(duration_text(DAY / rate), rate) for rate in RATES]
        self.nodes = dial([(f"{n:,}", n) for n in NODES], 2048, say("nodes"), tooltip=say("stops"))
        self.rate = dial(rates, failures.META_RSC1, say("rate"), tooltip=say("per"))
        self.save = dial([(duration_text(n), n) for n in SAVES], 60, say("save"), tooltip=say("stands"))
        self.repair = dial([(duration_text(n), n) for n in REPAIRS], 600, say("repair"), tooltip=say("until"))
        self.interval = dial([(duration_text(n), n) for n in INTERVALS], 3600, say("interval"), tooltip=say("between"))
        super().__init__((self.nodes, self.rate, self.save, self.repair, self.interval))

    @property
    def mtbf(self) -> float:
        """Mean seconds between failures of the job."""
        return failures.mtbf(nodes=self.nodes.value, per_node_day=self.rate.value)

    @property
    def week(self) -> failures.Week:
        """The week of the dials as they stand."""
        return self._week(self.interval.value)

    @property
    def intervals(self) -> dict[str, float]:
        """Seconds of work between two saves: the dial's, and what each formula says."""
        save = self.save.value
        return {
            "yours": self.interval.value,
            "young": failures.young_interval(save, self.mtbf),
            "daly": failures.daly_interval(save, self.mtbf),
            "availability": failures.availability_interval(save, self.mtbf, self.repair.value),
        }

    def effective(self, interval: float) -> float:
        """The share of the time that is kept with this interval, in closed form."""
        return failures.effective_time(interval=interval, **self._job)

    @property
    def _job(self) -> dict[str, float]:
        return {"mtbf": self.mtbf, "save": self.save.value, "repair": self.repair.value}

    def _week(self, interval: float) -> failures.Week:
        job = {"nodes": self.nodes.value, "per_node_day": self.rate.value, "seed": self._seed}
        return failures.simulate_week(interval=interval, save=self.save.value, repair=self.repair.value, **job)

    @property
    def scene(self) -> Scene:
        """The week above, the curve below."""
        title = say("title", nodes=self.nodes.value)
        curve = effective_time_scene(interval=self.interval.value, **self._job)
        return stacked_scene(week_scene(self.week, title=title), curve, title=title)

    @property
    def sentence(self) -> str:
        """How often the job fails, what is kept, what the best interval would keep."""
        nodes, interval, kept = self.nodes.value, self.interval.value, self.week.shares["work"]
        best = self.intervals["daly"]
        share, most = self.effective(interval), self.effective(best)
        advice = say("better", interval=duration_text(best), share=most) if most > share + 0.01 else say("good")
        hours = float(f"{failures.lost_gpu_hours(gpus=GPUS * nodes, effective=kept, seconds=WEEK):.2e}")  # three digits
        shown = {"mtbf": duration_text(self.mtbf), "interval": duration_text(interval), "advice": advice}
        return say("sentence", nodes=nodes, share=share, week=kept, hours=hours, **shown)

    @property
    def rows(self) -> Rows:
        """The dial's interval beside those of the formulas, and what each of them keeps."""
        return [
            {
                say("formula"): say(name),
                say("work"): duration_text(seconds),
                say("kept"): f"{self.effective(seconds):.1%}",
                say("this_week"): f"{self._week(seconds).shares['work']:.1%}",
            }
            for name, seconds in self.intervals.items()
        ]
