"""Stepping without a front end, and nothing that moves by itself."""

import pytest

from helpers.draw import Scene
from helpers.widgets.dials import dial
from helpers.widgets.stepper import SteppedExplorer


class Countdown(SteppedExplorer):
    """As many steps as the dial says; a negative number is no number of steps."""

    TEXT = "[widget] Countdown"

    def __init__(self):
        self.length = dial([-1, 0, 2, 5], 5, "length")
        super().__init__((self.length,))

    @property
    def num_steps(self):
        if self.length.value < 0:
            raise ValueError("-1 steps cannot be counted down; take 0 or more")
        return self.length.value

    @property
    def scene(self):
        return Scene(width=100, height=100, title=f"{self.num_steps - self.step.value} left", summary="")

    @property
    def sentence(self):
        return f"{self.num_steps - self.step.value} left"


@pytest.fixture
def explorer():
    return Countdown()


def test_each_step_draws(explorer):
    seen = []
    for step in range(1, explorer.num_steps + 1):
        explorer.step.value = step
        seen.append(explorer.sentence)
        assert f"{explorer.sentence}</p>" in explorer.html.value
    assert seen == ["4 left", "3 left", "2 left", "1 left", "0 left"]


def test_the_buttons_stop_at_both_ends(explorer):
    back, forward = explorer.stepper.children[:2]
    assert (back.description, forward.description) == ("previous", "next")
    back.click()
    assert explorer.step.value == 1
    for _ in range(7):
        forward.click()
    assert explorer.step.value == 5
    back.click()
    assert explorer.step.value == 4


def test_fewer_steps_keep_the_step_inside(explorer):
    explorer.step.value = 4
    explorer.length.value = 2
    assert explorer.step.value == explorer.step.max == explorer.stepper.play.max == 2
    explorer.length.value = 5
    assert (explorer.step.value, explorer.step.max) == (2, 5)
    explorer.length.value = 0
    assert (explorer.step.value, explorer.step.max) == (1, 1)


def test_a_bad_setting_leaves_the_steps_alone(explorer):
    explorer.step.value = 4
    explorer.length.value = -1
    assert "cannot be counted down" in explorer.html.value and explorer.step.value == 4
    explorer.length.value = 5
    assert "1 left" in explorer.html.value


def test_nothing_plays_by_itself_and_a_step_can_be_read(explorer):
    play = explorer.stepper.play
    assert not play.playing and not play.repeat and play.interval >= 800
    assert "Play moves the picture" in play.tooltip
