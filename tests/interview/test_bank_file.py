"""Reading a bank: each thing that can be wrong in a file is told with file, line and field."""

import subprocess
import sys

import pytest

from helpers.interview import load_all, load_bank
from helpers.interview.bank_file import card_ids
from helpers.interview.cards import NotebookCell, Publication

CARD = """\
chapter: 90_example
cards:
  - id: a-card
    level: junior
    question:
      en: How many?
      zh: 多少？
    answer:
      en: |
        **64.2 MB** and
        more.

        A second paragraph.
      zh: |
        **64.2 MB**，还有
        更多。
    shown_by: 90_example#prove
"""


def bank(tmp_path, text, name="90_example"):
    (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_card_is_read_with_its_lines_joined(tmp_path):
    (card,) = load_bank("90_example", bank(tmp_path, CARD))
    assert card.answer.en == "**64.2 MB** and more.\n\nA second paragraph."
    assert card.answer.zh == "**64.2 MB**，还有更多。"
    assert card.shown_by == NotebookCell(notebook="90_example", anchor="prove")
    assert (card.chapter, card.where) == ("90_example", "90_example.yaml line 3 (a-card)")


def test_an_exponent_is_a_number_and_a_source_is_a_source(tmp_path):
    text = CARD.replace("90_example#prove", "{source: A paper, url: 'https://example.org'}")
    text += "    verify:\n      - {call: helpers.quantities.costs.f, args: [1e-3], value: 2.5e8, says: 250 MB}\n"
    (card,) = load_bank("90_example", bank(tmp_path, text))
    assert card.shown_by == Publication(source="A paper", url="https://example.org")
    assert (card.verify[0].args, card.verify[0].value) == ((0.001,), 2.5e8)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("id: a-card", "id: A Card", r"line 3: `id` is 'A Card'; use lower case letters"),
        ("level: junior", "level: guru", r"line 3 \(a-card\): `level` is 'guru'; it must be one of junior, senior"),
        ("90_example#prove", "90_example", r"`shown_by` is '90_example'; write notebook#cell"),
        ("chapter: 90_example", "chapter: 91_other", r"line 1: `chapter` is '91_other' but the file is named"),
        ("chapter: 90_example\n", "", r"must hold exactly `chapter:` and `cards:`"),
        (
            "#prove\n",
            "#prove\n    verify: [{call: os.getpid, value: 1, says: 1 B}]\n",
            "`verify.call` is 'os.getpid'; it must be a dotted name under",
        ),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(tmp_path, old, new, sentence):
    assert old in CARD
    with pytest.raises(ValueError, match=sentence):
        load_bank("90_example", bank(tmp_path, CARD.replace(old, new)))


VERIFIED = CARD + "    verify: [{call: helpers.quantities.costs.f, value: 64.2e6, says: 64.2 MB}]\n"
CHOICES = """\
    choices:
      right: {en: 64.2 MB, zh: 是 64.2 MB}
      wrong: [{en: 42.8 MB, zh: 是 42.8 MB}, {en: 85.6 MB, zh: 是 85.6 MB}]
"""
PREDICTION = """\
    predict:
      ask: {en: "How many MB?", zh: 多少 MB？}
      says: 64.2 MB
"""


def test_a_card_may_also_be_multiple_choice_and_a_number_to_predict(tmp_path):
    (card,) = load_bank("90_example", bank(tmp_path, VERIFIED + CHOICES + PREDICTION))
    assert card.choices.right.en == "64.2 MB"
    assert [text.en for text in card.choices.wrong] == ["42.8 MB", "85.6 MB"]
    assert (card.predict.ask.en, card.predict.says, card.predict.tolerance) == ("How many MB?", "64.2 MB", 0.05)
    assert card.topic == "example"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (", {en: 85.6 MB, zh: 是 85.6 MB}", "", r"`choices.wrong` has 1 entries; write two to four"),
        ("en: 85.6 MB", "en: 64.2 MB", r"two of `choices` read the same in `en`"),
        ("      says: 64.2 MB", "      says: 64 MB", r"`predict.says` is '64 MB', which no check under `verify` says"),
        ("      says: 64.2 MB", "      says: 64.2 MB\n      tolerance: 5", r"`predict.tolerance` is 5; write a share"),
    ],
)
def test_a_wrong_question_form_is_told_in_one_sentence(tmp_path, old, new, sentence):
    text = CHOICES + PREDICTION
    assert old in text
    with pytest.raises(ValueError, match=r"90_example.yaml line \d+( \(a-card\))?: .*" + sentence):
        load_bank("90_example", bank(tmp_path, VERIFIED + text.replace(old, new)))


def test_an_unknown_chapter_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"there is no bank for '77'; the chapters with one are 90_example"):
        load_bank("77", bank(tmp_path, CARD))


def test_an_id_is_unique_in_the_whole_bank(tmp_path):
    bank(tmp_path, CARD)
    bank(tmp_path, CARD.replace("chapter: 90", "chapter: 91"), name="91_example")
    with pytest.raises(ValueError, match=r"91_example.yaml .*the id 'a-card' is taken by 90_example.yaml"):
        load_all(tmp_path)


def test_importing_the_bank_loads_neither_torch_nor_yaml_and_reading_it_no_torch():
    program = (
        "import sys, helpers.interview; print({'torch', 'yaml'} & set(sys.modules)); "
        "from helpers.interview import load_all, reference_tables; load_all(), reference_tables.myths(); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["set()", "False"]


def test_the_ids_that_are_read_alone_are_those_of_the_cards():
    assert [name for names in card_ids().values() for name in names] == [card.id for card in load_all()]
