"""Provides CollectiveExplorer, which walks through the steps of any collective and says what each step costs.

Dials choose collective, algorithm, ranks, buffer size and link. Chapter 01 and its lab use it.

Explorer, the base class, shows `sentence`, `scene` (a picture as plain data) and `rows` (a table), and computes them
anew whenever a dial changes. A ValueError in one of them becomes a message instead of the picture. A saved notebook
keeps TEXT and a picture. SteppedExplorer adds buttons and a slider `step`, from 1 to `num_steps`.
"""

from __future__ import annotations

from helpers.draw import collective_scene, collective_step_scene
from helpers.draw.scene import Scene
from helpers.learner.words import book
from helpers.predict.traffic.algorithms import COLLECTIVES, ChunkMessage, CollectiveSchedule, algorithms, schedule
from helpers.quantities import costs
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import LINKS
from helpers.widgets.controls import Control, Dial, choice, dial
from helpers.widgets.explorer import Rows, SteppedExplorer, with_sentence

SIZES = tuple(digit * 10**power for power in range(3, 10) for digit in (1, 2, 4)) + (10**10,)  # bytes: 1 kB to 10 GB
words = book("collective")  # what a reader sees, by name, in the learner's language: learner/words/collective.yaml
ONE, ALL = "one", "all"  # what the dial `view` shows: one step, or all of them


class CollectiveExplorer(SteppedExplorer):
    """A collective step by step, with what it costs. Without a front end: `.ranks.value = 8`, `.step.value = 3`.

    Dials: collective, algorithm (one that `predict.traffic.algorithms` has a schedule for), ranks (2 to 8), size
    (bytes of the whole buffer), link (a name of `specs.LINKS`), view (ONE or ALL).
    Raises ValueError for an unknown starting value.
    """

    TEXT = "[widget] CollectiveExplorer: a collective step by step, with dials for algorithm, ranks, size and link"

    def __init__(self, collective: str = "all_reduce", *, algorithm: str | None = None, ranks: int = 4) -> None:
        known = algorithms(collective)
        self.collective = choice(COLLECTIVES, collective, words("collective"), label=_word)
        self.algorithm = choice(known, algorithm or known[0], words("algorithm"), label=_word)
        self.ranks = dial(range(2, 9), ranks, words("ranks"))
        # In tooltips: "buffer" says which bytes these are, and "between" between whom the link is.
        self.size = dial(SIZES, 40_000_000, words("size"), label=format_bytes, tooltip=words("buffer"))
        self.link = dial(tuple(LINKS), "10 Gb/s", words("link"), tooltip=words("between"))
        # The tooltips say that one step stands "with its messages", and that all steps stand "side by side".
        views = [(words(view), view) for view in (ONE, ALL)]
        tooltips = (words("with"), words("beside"))
        self.view = Dial(views, ONE, style="buttons", tooltips=tooltips, button_width=84)
        self.collective.observe(self._offer_algorithms)
        dials = (self.collective, self.algorithm, self.ranks, self.size, self.link)
        super().__init__(dials, controls=[self.view])

    def _draw(self, turned: Control | None = None) -> None:
        """First switch the steps off where all of them are shown."""
        self.step.disabled = self.view.value == ALL
        super()._draw(turned)

    @property
    def plan(self) -> CollectiveSchedule:
        """The messages for the dials' values."""
        return schedule(self.collective.value, self.ranks.value, self.algorithm.value)

    @property
    def num_steps(self) -> int:
        """The last value of the slider `step`."""
        return self.plan.num_steps

    @property
    def scene(self) -> Scene:
        """One step with its messages, or all steps."""
        if self.view.value == ALL:
            return self.overview
        plan, step = self.plan, self.step.value
        states = list(plan.replay())  # the start, and what follows each step; the slider counts steps from 1
        title = words("title", name=self._name, step=step, num_steps=plan.num_steps)
        return collective_step_scene(states[step - 1], states[step], plan.step(step - 1), title=title, step=step)

    @property
    def overview(self) -> Scene:
        """All steps, one grid per step."""
        plan = self.plan
        return collective_scene(list(plan.replay()), words("overview", name=self._name, num_steps=plan.num_steps))

    @property
    def saved(self) -> Scene:
        """All steps, because nobody can step through a saved notebook."""
        return with_sentence(self.overview, self._sentence_of_all)

    @property
    def sentence(self) -> str:
        """What happens in this step and what was sent so far; in the view of all steps, what they send together."""
        return self._sentence_of_all if self.view.value == ALL else self._sentence_of_step

    @property
    def rows(self) -> Rows:
        """What each rank has sent, received and completed by the end of the displayed step."""
        plan, size = self.plan, self.size.value
        step = plan.num_steps if self.view.value == ALL else self.step.value
        complete = plan.complete_chunks(list(plan.replay())[step])
        return [
            {
                "rank": str(rank),
                words("column.sent"): format_bytes(plan.sent_bytes(rank, size, step)),
                words("column.received"): format_bytes(plan.received_bytes(rank, size, step)),
                words("column.complete"): words("of", part=complete[rank], whole=plan.num_chunks),
            }
            for rank in range(plan.world_size)
        ]

    @property
    def _name(self) -> str:
        """The collective, the number of ranks and the algorithm, in words."""
        collective = _word(self.collective.value).capitalize()
        return words("name", collective=collective, ranks=self.ranks.value, algorithm=_word(self.algorithm.value))

    @property
    def _sentence_of_step(self) -> str:
        """What the messages of this step do, and what was sent, and how long it took, until its end."""
        plan, size, link, step = self.plan, self.size.value, LINKS[self.link.value], self.step.value
        # Until this step, and until the end (None): bytes sent by each rank, and seconds.
        now, end = ([plan.sent_bytes(rank, size, until) for rank in range(plan.world_size)] for until in (step, None))
        took, takes = (format_seconds(plan.seconds(size, link, until)) for until in (step, None))
        # All ranks send equally much, or else the sentence is about the rank that sends most.
        whose = words("a_rank" if len(set(now)) == len(set(end)) == 1 else "busiest")
        sent = {"most": _share(max(now), max(end)), "whose": whose, "all": _share(sum(now), sum(end))}
        # deeds: what the messages of this step do.
        done = {"step": step, "num_steps": plan.num_steps, "deeds": messages_text(plan, step, size)}
        return words("so_far", **done, **sent, took=took, takes=takes)

    @property
    def _sentence_of_all(self) -> str:
        """What the entire collective sends, how long it takes, and which algorithm would be fastest."""
        call = (self.collective.value, self.size.value, self.ranks.value)
        link, algorithm = LINKS[self.link.value], self.algorithm.value
        has_choice = len(self.algorithm.options) > 1
        return words(
            "whole",
            size=format_bytes(self.size.value),
            sends=format_bytes(costs.sent_bytes(*call, algorithm)),
            all=format_bytes(costs.total_bytes(*call, algorithm)),
            seconds=format_seconds(costs.seconds(*call, link, algorithm)),
            waits=format_seconds(costs.rounds(self.collective.value, self.ranks.value, algorithm) * link.latency),
            fastest=words("fastest", algorithm=_word(costs.fastest(*call, link))) if has_choice else "",
        )

    def _offer_algorithms(self, turned: Control) -> None:
        """Offer the algorithms of the new collective; keep the current one where it is among them."""
        known = algorithms(self.collective.value)
        keep = self.algorithm.value if self.algorithm.value in known else known[0]
        self.algorithm.offer([(_word(name), name) for name in known], keep)


def _word(name: str) -> str:
    """The name of a collective or an algorithm as people write it: "all-reduce" for "all_reduce"."""
    return name.replace("_", "-")


def _share(part: float, whole: float) -> str:
    """ "10 MB of 40 MB", in words."""
    return words("of", part=format_bytes(part), whole=format_bytes(whole))


def messages_text(plan: CollectiveSchedule, step: int, size: float) -> str:
    """A sentence on what the messages of a step do. Steps count from 1; size is in bytes."""
    messages = plan.step(step - 1)
    first, *others = messages
    what, action = _payload(first, plan, size), "add" if first.adds else "copy"
    if len(messages) > 2:
        who = words("each") if len(messages) == plan.world_size else words("each_of", count=len(messages))
        return words(f"many_{action}", who=who, what=what, to=_direction(messages, plan))
    ends = {"a": first.sender, "b": first.receiver}
    if others:
        return words(f"two_{action}", what=what, **ends, c=others[0].sender, d=others[0].receiver)
    return words(f"one_{action}", what=what, **ends)


def _payload(message: ChunkMessage, plan: CollectiveSchedule, size: float) -> str:
    """How many chunks a message carries, and their bytes."""
    count = message.last - message.first
    num_bytes = format_bytes(size * count / plan.num_chunks)
    return words("what_whole" if count == plan.num_chunks else "what", count=count, size=num_bytes)


def _direction(messages: tuple[ChunkMessage, ...], plan: CollectiveSchedule) -> str:
    """To whom each rank sends: the right neighbour, a rank at a fixed distance, or a partner."""
    if plan.algorithm == "ring":
        return words("right")
    distances = {abs(m.receiver - m.sender) for m in messages}
    return words("away", distance=distances.pop()) if len(distances) == 1 else words("partner")
