"""Every card: valid, unique, in two languages, with numbers that its functions return and cells that exist."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from helpers.interview import load_all, load_bank
from helpers.interview.bank_file import chapters
from helpers.interview.cards import LEVELS, NotebookCell, Publication, problems
from tests.interview.shown_cells import missing
from tests.test_prose import RULES

CARDS = load_all()
NOTHING_COUNTED = ("all-reduces a tensor", "all-reduce a tensor", "1 a step of", "3 a rank computes")


def told(findings):
    """By card, what there is to say of it: a whole table, so that one run shows every card that is wrong."""
    return {card.where: said for card, said in findings if said}


@pytest.mark.parametrize("chapter", chapters())
def test_a_chapter_has_eight_cards_and_a_topic_six_and_both_open_with_an_easy_one(chapter):
    cards = load_bank(chapter)
    assert len(cards) >= (8 if chapter[0].isdigit() else 6)
    assert cards[0].level == ("junior" if chapter[0].isdigit() else min(cards, key=ease).level)
    assert len({card.level for card in cards}) >= 2


def ease(card):
    return LEVELS.index(card.level)


def test_the_archive_leaves_enough_to_ask():
    """What interviewers no longer ask is no card that a topic counts by, but of chapter 02 nearly all is."""
    asked = Counter(card.chapter for card in CARDS if not card.archive)
    assert {name: asked[name] for name in chapters() if asked[name] < (8 if name[0].isdigit() else 6)} == {
        "02_data_parallel": 2
    }


def test_at_most_a_quarter_of_the_cards_rests_on_a_source():
    assert sum(isinstance(card.shown_by, Publication) for card in CARDS) <= len(CARDS) / 4


def test_numbers_are_what_their_functions_return():
    assert told((card, problems(card)) for card in CARDS) == {}


def test_a_wrong_number_planted_in_an_answer_is_found():
    """In either language, and in what a check expects."""
    assert told((card, unguarded(card)) for card in CARDS) == {}


def unguarded(card):
    """What can be changed in the card without anybody noticing."""
    found = []
    for check in card.verify:
        found += [(check.says, zone) for zone in ("en", "zh") if not problems(planted(card, check.says, zone))]
        others = tuple(replace(one, value=one.value * 1.5 + 1) if one is check else one for one in card.verify)
        found += [(check.says, "value")] * (not problems(replace(card, verify=others)))
    return found


def planted(card, says, language):
    """The card with one more in each place where an answer in this language says this number."""
    wrong = re.sub(r"\d+", lambda digits: str(int(digits[0]) + 1), says, count=1)

    def changed(text):
        return text and replace(
            text, **{language: re.sub(rf"(?<![0-9.,]){re.escape(says)}", wrong, text.in_(language))}
        )

    return replace(card, answer=changed(card.answer), longer=changed(card.longer))


def test_a_card_is_whole():
    """The 30-second form is there by its format; the longer form, the mistake and what is asked next are here."""
    assert [
        card.where for card in CARDS if not (card.longer and card.usual_mistake and len(card.follow_ups) >= 2)
    ] == []
    words = {card.where: len(card.full_answer("en").split()) for card in CARDS}
    assert {where: n for where, n in words.items() if not 100 <= n <= 420} == {}  # up to 3 minutes
    assert [card.where for card in CARDS if bool(card.predict) != bool(card.verify)] == []


def test_the_bank_has_what_was_promised():
    assert len(CARDS) >= 120
    assert sum(bool(card.verify) for card in CARDS) >= 40
    assert sum(bool(card.choices) for card in CARDS) >= len(CARDS) / 3
    assert {card.level for card in CARDS} == {"junior", "senior", "staff"}


def test_length_does_not_betray_the_right_choice():
    """In each language the right one is the longest in at most half of the cards: of four, by chance, in a quarter."""
    for language in ("en", "zh"):
        longest = [card.id for card in CARDS if card.choices and is_longest(card.choices, language)]
        assert len(longest) <= sum(bool(card.choices) for card in CARDS) / 2, longest


def is_longest(choices, language):
    return all(len(choices.right.in_(language)) > len(wrong.in_(language)) for wrong in choices.wrong)


def test_the_cell_that_shows_it_exists():
    assert [
        said
        for card in CARDS
        if isinstance(card.shown_by, NotebookCell) and (said := missing(card.where, card.shown_by))
    ] == []


def test_a_card_that_points_nowhere_is_told_with_its_file_and_line():
    sentence = missing("03_ddp.yaml line 7 (a-card)", NotebookCell(notebook="03_ddp", anchor="nowhere"))
    assert sentence.startswith("03_ddp.yaml line 7 (a-card): `shown_by` names the cell 'nowhere', but 03_ddp.ipynb has")
    assert "names the notebook 99_none.ipynb" in missing("a line", NotebookCell(notebook="99_none", anchor="a"))


def test_a_short_answer_can_be_said_in_half_a_minute():
    lengths = {c.where: (len(c.answer.en.split()), len(re.findall(r"[\u4e00-\u9fff]", c.answer.zh))) for c in CARDS}
    assert {where: (en, zh) for where, (en, zh) in lengths.items() if en > 110 or zh > 220} == {}


def test_both_languages_say_the_same_numbers():
    assert told((card, decimals(card.full_answer("en")) ^ decimals(card.full_answer("zh"))) for card in CARDS) == {}


def decimals(text: str) -> set[str]:
    """Numbers with a decimal point or a thousands comma: the ones a translation must not lose."""
    return set(re.findall(r"(?<![\w.])\d+(?:[.,]\d+)+(?![\w.]*\d)", text))


def test_nothing_is_emphasised_by_single_asterisks():
    """They would be printed as they stand: bold is all that a card knows. Code and a product, a * b, stay allowed."""
    assert told((card, [one for text in texts(card) for one in single_asterisks(text)]) for card in CARDS) == {}


def test_single_asterisks_are_found_and_bold_code_and_products_are_none():
    assert all(
        map(single_asterisks, ("on *every* rank", "*每个* rank", "a *long and\nbroken* one", "**bold** and *not*"))
    )
    assert not any(
        map(single_asterisks, ("**bold**", "a * b * c", "`x*y*z`", "**a** * b and c * **d**", "2*N and 3*N"))
    )


def test_the_english_of_a_card_holds_no_chinese():
    """A word replaced in all of a file's Chinese has once been replaced in the English beside it as well."""
    assert (
        told((card, [said for said in texts(card, ["en"]) if re.search(r"[\u4e00-\u9fff]", said)]) for card in CARDS)
        == {}
    )


def test_a_card_writes_per_as_the_chapters_do():
    """16 bytes per parameter: "a" for "per" makes those stumble for whom English is a second language."""
    assert (
        told((card, [one for text in texts(card, ["en"]) for one in counted_by_an_article(text)]) for card in CARDS)
        == {}
    )


def test_an_article_that_counts_is_found():
    assert counted_by_an_article("the states take 16 bytes\na parameter") == ["16 bytes a parameter"]
    assert counted_by_an_article("With ZeRO-3 a rank computes, four ranks all-reduce a tensor of 40 MB") == []


def counted_by_an_article(text: str) -> list[str]:
    """What the prose of chapters may not have, without what only looks like it."""
    plain = re.sub(r"\s+", " ", text)
    found = ((one.group(), plain[one.start() : one.end() + 10]) for one in RULES["write per"].finditer(plain))
    return [said for said, more in found if not any(phrase in more for phrase in NOTHING_COUNTED)]


def texts(card, languages=("en", "zh")) -> list[str]:
    """Everything that is shown of a card, in these languages."""
    options = (card.choices.right, *card.choices.wrong) if card.choices else ()
    asked = (card.predict.ask,) if card.predict else ()
    shown = (card.question, card.answer, card.longer, card.usual_mistake, *card.follow_ups, *options, *asked)
    return [text.in_(language) for text in shown if text for language in languages]


def single_asterisks(text: str) -> list[str]:
    """What stands between single asterisks, as in Markdown: no blank inside of them, no letter or digit before."""
    plain = re.sub(r"`[^`]*`|\*\*", "", text)
    return re.findall(r"(?<![A-Za-z0-9*])\*(?![\s*])[^*]*[^\s*]\*(?![A-Za-z0-9*])", plain)
