"""A number in an answer is held to the function that computes it."""

from dataclasses import replace

import pytest

from helpers.interview.cards import (
    Card,
    Check,
    NotebookCell,
    Prediction,
    build,
    compute,
    evaluate,
    has_number,
    problems,
    rounds_to,
)
from helpers.learner.words import Words
from helpers.specs import Link


def card(check, en="It sends 64.2 MB.", zh="发送 64.2 MB。"):
    text = Words(en=en, zh=zh)
    cell = NotebookCell(notebook="90_example", anchor="prove")
    return Card(
        id="a-card", chapter="90_example", level="junior", question=text, answer=text, shown_by=cell, verify=(check,)
    )


def check(value=64.2e6, says="64.2 MB", returned=64.2e6):
    return Check(call="helpers.interview.cards.build", args=(returned,), value=value, says=says)


def test_a_right_number_has_no_problem():
    assert problems(card(check())) == []


def test_a_wrong_value_a_wrong_text_and_a_missing_number_are_three_problems():
    found = problems(card(check(value=1.0, says="63 MB")))
    assert "returns 64200000.0, the card expects 1.0" in found[0]
    assert "the text says '63 MB'" in found[1]
    assert "the answer in `en` does not contain '63 MB'" in found[2]
    assert "the answer in `zh` does not contain '63 MB'" in found[3]


def test_a_number_missing_in_one_language_is_found():
    assert len(problems(card(check(), zh="发送。"))) == 1


@pytest.mark.parametrize(
    ("says", "value"),
    [
        ("64.2 MB", 64_189_440), ("64,189,440 B", 64_189_440), ("61.2 MiB", 64_189_440), ("12.5 %", 0.125), ("6", 6),
        ("1.5 ms", 0.00151), ("20 µs", 2e-5), ("2.5x", 2.5), ("0.75", 0.75), ("-3 ms", -0.003), ("1.4 h", 5000),
    ],
)  # fmt: skip
def test_a_printed_number_rounds_the_value(says, value):
    assert rounds_to(says, value)


@pytest.mark.parametrize(("says", "value"), [("64.3 MB", 64_189_440), ("64 MiB", 64_189_440), ("6", 7), ("1 s", 1e-3)])
def test_a_wrong_printed_number_does_not(says, value):
    assert not rounds_to(says, value)


@pytest.mark.parametrize("says", ["many MB", "64 parsecs", ""])
def test_a_printed_number_needs_a_number_and_a_known_unit(says):
    with pytest.raises(ValueError, match="write a number and a unit"):
        rounds_to(says, 1.0)


def test_a_number_stands_in_a_text_as_a_whole():
    assert has_number("4 MB", "it sends 4 MB.")
    assert has_number("4 MB", "发送4 MB，")
    assert not has_number("4 MB", "it sends 64 MB")
    assert not has_number("4 MB", "it sends 0.4 MB")
    assert not has_number("6", "in 6.5 buckets")


def test_an_argument_can_be_an_object():
    link = build({"make": "helpers.specs.Link", "latency": 1e-3, "bandwidth": 1e8})
    assert link == Link(latency=1e-3, bandwidth=1e8)
    assert build([{"a": 1}, 2]) == [{"a": 1}, 2]


def test_an_attribute_is_read_from_the_result():
    link = {"make": "helpers.specs.Link", "latency": 1e-3, "bandwidth": 1e8}
    made = Check(call="helpers.interview.cards.build", args=(link,), attribute="latency", value=1e-3, says="1 ms")
    assert compute(made) == 1e-3


def test_a_name_that_leads_nowhere_is_told():
    with pytest.raises(ValueError, match=r"`helpers.quantities.costs.nothing` cannot be called"):
        compute(Check(call="helpers.quantities.costs.nothing", value=1, says="1"))


@pytest.mark.parametrize(
    ("how", "value"),
    [("4 × 8 × 2", 64), ("2 × 3/4 × 10,698,240 × 4 B", 64_189_440), ("10 × 10 µs", 1e-4), ("(3 - 1) × 2.5 ms", 5e-3)],
)
def test_a_computation_is_worked_out(how, value):
    assert evaluate(how) == pytest.approx(value)


@pytest.mark.parametrize("how", ["", "four × 8", "4 ** 8", "4 × 8 parsecs", "__import__('os')"])
def test_what_is_no_computation_is_told(how):
    with pytest.raises(ValueError, match="`how` is"):
        evaluate(how)


def test_a_computation_that_comes_to_another_number_is_a_problem():
    def asked(how):
        return replace(card(check()), predict=Prediction(ask=Words.of("how many"), says="64.2 MB", how=how))

    assert problems(asked("2 × 3/4 × 10,698,240 × 4 B")) == []
    assert "which is not '64.2 MB'" in problems(asked("2 × 10,698,240 × 4 B"))[0]
