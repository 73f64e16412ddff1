"""Cases of a task that take turns."""

from __future__ import annotations

from helpers.grading.running_case import run_alternating


class Steps:
    """An Acting that notes when it was advanced."""

    def __init__(self, name: str, count: int, order: list[str]):
        self.name, self.left, self.order = name, count, order

    def advance(self) -> bool:
        self.order.append(self.name)
        self.left -= 1
        return self.left > 0


def test_the_first_two_take_turns_and_the_others_follow():
    order: list[str] = []
    run_alternating([Steps("a", 3, order), Steps("b", 1, order), Steps("c", 2, order)])
    assert order == ["a", "b", "a", "a", "c", "c"]
