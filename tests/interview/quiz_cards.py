"""Cards, a clock and a progress file for the tests of the quiz: no bank, no home, no waiting."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from helpers.interview.cards import Card, Check, Choices, NotebookCell, Prediction
from helpers.interview.steps import FINISH, Ask, Reply
from helpers.learner.words import Words

START = datetime(2026, 3, 1, 20, 0, tzinfo=UTC)


def text(name: str) -> Words:
    return Words(en=f"{name}?", zh=f"{name} 呢？")


def card(card_id: str, chapter: str = "03_ddp", level: str = "junior", *, choices=False, predict="", tolerance=0.05):
    """A card; predict: the number as printed, such as "64.2 MB", where it is to have one."""
    wrong = tuple(text(f"wrong {letter} {card_id}") for letter in "xyz")
    number = predict and Prediction(ask=text(f"ask {card_id}"), says=predict, tolerance=tolerance)
    check = Check(call="helpers.quantities.costs.sent_bytes", value=64_189_440, says=predict)
    return Card(
        id=card_id,
        chapter=chapter,
        level=level,
        question=text(f"question {card_id}"),
        answer=Words(en=f"**answer** {card_id} is `{predict}`", zh=f"**答案** {card_id}：`{predict}`"),
        longer=text(f"longer {card_id}"),
        usual_mistake=text(f"mistake {card_id}"),
        follow_ups=(text(f"next {card_id}"),),
        shown_by=NotebookCell(notebook=chapter, anchor="prove"),
        choices=Choices(right=text(f"right {card_id}"), wrong=wrong) if choices else None,
        predict=number or None,
        verify=(check,) if predict else (),
    )


CARDS = (
    card("senior", level="senior", choices=True),
    card("amp-easy", "04_amp"),
    card("easy", choices=True, predict="64.2 MB"),
    card("start", "00_start_here", predict="1,024", tolerance=0.0),
    card("beyond", "communication", level="staff"),
)


class Clock:
    """A clock that a test moves: `clock.forward(days=1)`. Each look at it takes no time."""

    def __init__(self, now: datetime = START):
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def forward(self, **span: float) -> None:
        self.now += timedelta(**span)


def line(key: str, rating: str = "good", when: datetime | str = START, *, form: str = "folded", **more) -> str:
    """One line of a progress file."""
    time = when if isinstance(when, str) else when.isoformat()
    fields = {"time": time, "kind": "quiz", "key": key, "passed": rating != "again", "rating": rating, "form": form}
    return json.dumps(fields | more) + "\n"


def lines(path: Path) -> list[dict]:
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]


def played(talk, *replies) -> list:
    """All steps of a talk that gets these replies and is then ended. A string that begins with a colon is an action."""
    steps, shown, left = talk.steps(), [], list(replies)
    reply = None
    while True:
        try:
            shown.append(steps.send(reply))
        except StopIteration:
            return shown
        reply = None
        if isinstance(shown[-1], Ask):
            reply = left.pop(0) if left else f":{FINISH}"
            if not isinstance(reply, Reply):
                is_action = isinstance(reply, str) and reply.startswith(":")
                reply = Reply(action=reply[1:]) if is_action else Reply(reply)
