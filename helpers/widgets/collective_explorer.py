"""The dials of chapter 01: a collective, its algorithm, ranks, size and link; step through it, see who holds what."""

from __future__ import annotations

import ipywidgets

from helpers.draw import collective_scene, collective_step_scene
from helpers.draw.scene import Scene
from helpers.learner.words import book
from helpers.predict.traffic.algorithms import COLLECTIVES, ChunkMessage, CollectiveSchedule, algorithms, schedule
from helpers.quantities import costs
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import LINKS
from helpers.widgets.dials import choice, dial
from helpers.widgets.explorer import Rows, with_sentence
from helpers.widgets.stepper import SteppedExplorer

SIZES = tuple(digit * 10**power for power in range(3, 10) for digit in (1, 2, 4)) + (10**10,)
say = book("collective")
ONE, ALL = "one", "all"


class CollectiveExplorer(SteppedExplorer):
    """A collective step by step, with what it costs. Without a front end: `.ranks.value = 8`, `.step.value = 3`.

    Dials: collective, algorithm (what `predict.messages` has a schedule for), ranks (2 to 8), size (bytes of the whole
    buffer), link (a name of `specs.LINKS`), view (ONE or ALL). ValueError when a dial would start at an unknown value.
    """

    TEXT = "[widget] CollectiveExplorer: a collective step by step, with dials for algorithm, ranks, size and link"

    def __init__(self, collective: str = "all_reduce", *, algorithm: str | None = None, ranks: int = 4) -> None:
        known = algorithms(collective)
        self.collective = choice(_named(COLLECTIVES), collective, say("collective"))
        self.algorithm = choice(_named(known), algorithm or known[0], say("algorithm"))
        self.ranks = dial(range(2, 9), ranks, say("ranks"))
        sizes = [(format_bytes(size), size) for size in SIZES]
        self.size = dial(sizes, 40_000_000, say("size"), tooltip=say("buffer"))
        self.link = dial(tuple(LINKS), "10 Gb/s", say("link"), tooltip=say("between"))
        views = [(say(view), view) for view in (ONE, ALL)]
        self.view = ipywidgets.ToggleButtons(options=views, tooltips=(say("with"), say("beside")))
        self.view.style.button_width = "84px"
        self.collective.observe(self._offer_algorithms, names="value")
        self.view.observe(self._draw, names="value")
        dials = (self.collective, self.algorithm, self.ranks, self.size, self.link)
        super().__init__(dials, controls=[self.view])

    @property
    def plan(self) -> CollectiveSchedule:
        """The messages of the dials as they stand."""
        return schedule(self.collective.value, self.ranks.value, self.algorithm.value)

    @property
    def num_steps(self) -> int:
        return self.plan.num_steps

    @property
    def scene(self) -> Scene:
        """One step with its messages, or all of them."""
        if self.view.value == ALL:
            return self.overview
        plan, step = self.plan, self.step.value
        states = list(plan.replay())
        title = say("title", name=self._name, step=step, num_steps=plan.num_steps)
        return collective_step_scene(states[step - 1], states[step], plan.step(step - 1), title=title, step=step)

    @property
    def overview(self) -> Scene:
        """All steps, one grid each."""
        plan = self.plan
        return collective_scene(list(plan.replay()), say("overview", name=self._name, num_steps=plan.num_steps))

    @property
    def saved(self) -> Scene:
        """A saved notebook cannot be stepped through, so it keeps all steps."""
        return with_sentence(self.overview, self._whole)

    @property
    def sentence(self) -> str:
        """What happens in this step and what it took so far; of all steps, what they take together."""
        return self._whole if self.view.value == ALL else self._so_far

    @property
    def rows(self) -> Rows:
        """What each rank has sent, received and completed, up to the step that is shown."""
        plan, size, step = self.plan, self.size.value, self._shown_step
        complete = plan.complete_chunks(list(plan.replay())[step])
        return [
            {
                "rank": str(rank),
                say("column.sent"): format_bytes(plan.sent_bytes(rank, size, step)),
                say("column.received"): format_bytes(plan.received_bytes(rank, size, step)),
                say("column.complete"): say("of", part=complete[rank], whole=plan.num_chunks),
            }
            for rank in range(plan.world_size)
        ]

    @property
    def _shown_step(self) -> int:
        return self.num_steps if self.view.value == ALL else self.step.value

    @property
    def _name(self) -> str:
        collective = _word(self.collective.value).capitalize()
        return say("name", collective=collective, ranks=self.ranks.value, algorithm=_word(self.algorithm.value))

    @property
    def _so_far(self) -> str:
        plan, size, link, step = self.plan, self.size.value, LINKS[self.link.value], self.step.value
        now, end = ([plan.sent_bytes(rank, size, k) for rank in range(plan.world_size)] for k in (step, None))
        took, takes = (format_seconds(plan.seconds(size, link, k)) for k in (step, None))
        whose = say("a_rank" if len(set(now)) == len(set(end)) == 1 else "busiest")
        sent = {"most": _of(max(now), max(end)), "whose": whose, "all": _of(sum(now), sum(end))}
        done = {"step": step, "num_steps": plan.num_steps, "deeds": deeds(plan, step, size)}
        return say("so_far", **done, **sent, took=took, takes=takes)

    @property
    def _whole(self) -> str:
        what = (self.collective.value, self.size.value, self.ranks.value)
        link, by = LINKS[self.link.value], self.algorithm.value
        several = len(self.algorithm.options) > 1
        return say(
            "whole",
            size=format_bytes(what[1]),
            sends=format_bytes(costs.sent_bytes(*what, by)),
            all=format_bytes(costs.total_bytes(*what, by)),
            seconds=format_seconds(costs.seconds(*what, link, by)),
            waits=format_seconds(costs.rounds(what[0], what[2], by) * link.latency),
            fastest=say("fastest", algorithm=_word(costs.fastest(*what, link))) if several else "",
        )

    def _offer_algorithms(self, change: object) -> None:
        """The algorithm stays where the new collective knows it."""
        known = algorithms(self.collective.value)
        keep = self.algorithm.value if self.algorithm.value in known else known[0]
        self.algorithm.options = _named(known)
        self.algorithm.value = keep


def _word(name: str) -> str:
    return name.replace("_", "-")


def _named(names: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(_word(name), name) for name in names]


def _of(part: float, whole: float) -> str:
    return say("of", part=format_bytes(part), whole=format_bytes(whole))


def deeds(plan: CollectiveSchedule, step: int, size: float) -> str:
    """What the messages of a step do, in words; steps count from 1, size in bytes."""
    first, *others = messages = plan.step(step - 1)
    what, deed = _what(first, plan, size), "add" if first.adds else "copy"
    if len(messages) > 2:
        who = say("each") if len(messages) == plan.world_size else say("each_of", count=len(messages))
        return say(f"many_{deed}", who=who, what=what, to=_to(messages, plan))
    ends = {"a": first.sender, "b": first.receiver}
    for other in others:
        return say(f"two_{deed}", what=what, **ends, c=other.sender, d=other.receiver)
    return say(f"one_{deed}", what=what, **ends)


def _what(message: ChunkMessage, plan: CollectiveSchedule, size: float) -> str:
    count = message.last - message.first
    num_bytes = format_bytes(size * count / plan.num_chunks)
    return say("what_whole" if count == plan.num_chunks else "what", count=count, size=num_bytes)


def _to(messages: tuple[ChunkMessage, ...], plan: CollectiveSchedule) -> str:
    if plan.algorithm == "ring":
        return say("right")
    distances = {abs(m.receiver - m.sender) for m in messages}
    return say("away", distance=distances.pop()) if len(distances) == 1 else say("partner")
