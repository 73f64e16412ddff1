"""Reading answers: what people type in two languages, and what is refused with a sentence."""

import pytest

from helpers.interview import load_all
from helpers.interview.answers import asked_unit, explanation, judge_choice, judge_number, judge_rating, read_number
from helpers.interview.cards import has_number
from helpers.learner.words import LANGUAGES
from tests.interview.quiz_cards import CARDS, card

EASY, COUNT = CARDS[2], CARDS[3]


@pytest.mark.parametrize(
    "given",
    [
        "64.2 MB", "64.2", "61.2 MiB", "6.42e7 B", "64,200,000 B", "64.2MB", " 64.2  mb ", "~64.2 MB", "约 64.2 MB",
        "６４．２", "６４．２ 兆字节", "64.2 MB.", "6.42×10^7 B", "6.42 * 10**7 bytes", "6420 万字节", "0.642亿字节",
        "64 200 kB", "64.2 million bytes", "about 64.2",
    ],
)  # fmt: skip
def test_one_number_in_many_spellings(given):
    assert read_number(given, "MB") == pytest.approx(64.2e6, rel=1e-3)


@pytest.mark.parametrize(
    ("given", "unit", "value"),
    [
        ("1,024", "", 1024), ("１，０２４", "", 1024), ("7/8", "", 0.875), ("-3", "", -3), (".5", "", 0.5),
        ("16 个", "", 16), ("400", "GB/s", 4e11), ("400000 MB/s", "GB/s", 4e11),
        ("1.75x", "x", 1.75), ("7.5 倍", "x", 7.5), ("12.5", "%", 0.125), ("12.5%", "%", 0.125), ("1e-3", "", 1e-3),
        ("20 ms", "s", 0.02), ("20 毫秒", "ms", 0.02), ("1.5 h", "min", 5400), ("3 µs", "ms", 3e-6),
        ("3 μs", "ms", 3e-6),
        ("80 GiB", "GB", 80 * 2**30), ("1.5", "TB", 1.5e12),
    ],
)  # fmt: skip
def test_numbers_and_units(given, unit, value):
    assert read_number(given, unit) == pytest.approx(value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("", "cannot be read as a number: write one such as 12.3 MB"),
        ("many", "'many' cannot be read as a number"),
        (".", "cannot be read"),
        ("nan", "cannot be read"),
        ("1e999", "cannot be read"),
        ("1/0", "cannot be read"),
        ("9" * 500, "cannot be read"),
        ("64,2", "the comma does not separate thousands"),
        ("64.2 Mb", "'Mb' means bits: write a capital B"),
        ("64.2 foo", "'foo' is not a known unit"),
        ("64.2 s", "'s' does not measure what is asked: give the answer in MB"),
        ("6 4", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_told(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_number(given, "MB")


@pytest.mark.parametrize(
    ("given", "passed", "says"),
    [
        ("64.2", True, "Right: it is 64.2 MB, you said 64.2 MB."),
        ("61.2 MiB", True, "you said 61.2 MiB (64.2 MB)"),
        ("61.1", True, "Right"),
        ("60.9", False, "Not yet: it is 64.2 MB, you said 60.9 MB, 5.14 % too low."),
        ("67.5", False, "5.14 % too high"),
        ("42.8", False, "33.3 % too low"),
        ("128.4", False, "2 times too large"),
        ("64.2 kB", False, "(0.0642 MB), 1,000 times too small"),
        ("-64.2", False, "with the wrong sign"),
        ("0", False, "100 % too low"),
    ],
)
def test_a_number_is_right_within_its_tolerance_and_told_how_far_off(given, passed, says):
    judged = judge_number(given, EASY, "en")
    assert (judged.passed, judged.rating) == (passed, "good" if passed else "again")
    assert says in judged.sentence


def test_the_computed_number_is_right_as_well_as_the_printed_one():
    exact = card("exact", predict="64.2 MB", tolerance=0.0)
    assert judge_number("64,189,440 B", exact, "en").passed
    assert judge_number("64.2", exact, "en").passed
    assert not judge_number("64.19", exact, "en").passed


def test_a_count_has_no_tolerance():
    assert asked_unit(COUNT.predict) == ""
    assert judge_number("1024", COUNT, "en").passed
    assert not judge_number("1025", COUNT, "en").passed
    assert judge_number("1000", COUNT, "zh").sentence == "不对：正确值是 1,024，你答的是 1000，低了 2.34 %。"


@pytest.mark.parametrize(
    ("given", "rating"),
    [("again", "again"), ("H", "hard"), ("3", "good"), ("４", "easy"), ("忘了", "again"), (" Easy ", "easy")],
)
def test_a_rating_in_either_language_by_letter_or_number(given, rating):
    judged = judge_rating(given, "en")
    assert (judged.rating, judged.passed) == (rating, rating != "again")


@pytest.mark.parametrize(("given", "passed"), [("b", True), ("B)", True), ("ｂ", True), ("a", False)])
def test_a_choice_by_letter(given, passed):
    judged = judge_choice(given, ("one", "two", "three"), "two", "en")
    assert judged.passed == passed
    assert judged.sentence == ("Right." if passed else "Not this one. Right is b) two.")


@pytest.mark.parametrize("given", ["", "d", "0", "2", "ab", "two"])
def test_a_letter_that_is_not_there(given):
    with pytest.raises(ValueError, match="is not one of the options: give one letter, a, b, c"):
        judge_choice(given, ("one", "two", "three"), "two", "en")
    with pytest.raises(ValueError, match="不是评分"):
        judge_rating("d" + given, "zh")


def test_a_number_comes_with_its_computation_or_with_what_the_longer_answer_says_of_it():
    def explained(id, given, language="en"):
        return judge_number(given, next(one for one in load_all() if one.id == id), language).sentence

    said = "Not yet: it is 64, you said 10, 6.4 times too small. It is 4 × 8 × 2 = 64."
    assert explained("what-is-a-rank", "10") == said
    assert explained("what-is-a-rank", "64", "zh").endswith("算式：4 × 8 × 2 = 64。")
    for one in filter(lambda one: one.predict, load_all()):
        for language in LANGUAGES:
            said = explanation(one, language)
            assert one.predict.says in said or has_number(one.predict.says, one.answer.in_(language)), one.where
