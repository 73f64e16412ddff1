"""Each widespread claim is refuted by a run on live ranks, and the words hold the numbers that the run returned."""

from dataclasses import replace

import pytest

from helpers.interview.cards import NotebookCell
from helpers.interview.reference_tables import FOLDER, MythNumber, Refutation, myths
from tests.interview.changed_file import changed
from tests.interview.shown_cells import missing

MYTHS = {myth.id: myth for myth in myths()}


def test_there_are_ten_or_more():
    assert len(MYTHS) >= 10


@pytest.mark.parametrize("name", MYTHS)
def test_the_run_refutes_it(name, ranks):
    assert MYTHS[name].refute(ranks).problems == []


@pytest.mark.parametrize("name", MYTHS)
def test_the_cell_that_shows_it_exists(name):
    assert isinstance(MYTHS[name].shown_by, NotebookCell)
    assert missing(MYTHS[name].where, MYTHS[name].shown_by) == ""


def test_a_run_that_says_something_else_is_found():
    myth = MYTHS["all-reduce-averages"]
    (wrong,) = Refutation(myth=myth, numbers={"other": 10.0}).problems
    assert "`after` is not what helpers.chapters.myths.all_reduce_averages returns; it returns other" in wrong
    found = Refutation(myth=myth, numbers={"after": 2.5}).problems
    assert "the run returns 2.5, the file expects 10" in found[0]
    assert "the truth says '10', the run returns 2.5" in found[1]
    assert "what the claim says; it refutes nothing" in found[2]


def test_a_number_that_the_words_do_not_hold_is_found():
    myth = replace(MYTHS["all-reduce-averages"], finds=(MythNumber(name="after", value=11, says="11"),))
    found = Refutation(myth=myth, numbers={"after": 11.0}).problems
    assert [sentence.rsplit(":", 1)[1] for sentence in found] == [
        f" the truth in `{language}` does not contain '11'" for language in ("en", "zh")
    ]


@pytest.mark.parametrize(("bubble", "num_problems"), [(0.2727272727272727, 0), (0.2, 3)])
def test_a_claim_can_compare_with_another_number(bubble, num_problems):
    myth = MYTHS["one-f-one-b-smaller-bubble"]
    found = {"gpipe_bubble": 0.2727272727272727, "one_f_one_b_bubble": bubble, "one_f_one_b_held": 4, "gpipe_held": 8}
    found |= {"gpipe_slow": 0.3846153846153846, "one_f_one_b_slow": 0.5102040816326531}
    assert len(Refutation(myth=myth, numbers=found).problems) == num_problems


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("    claim:\n", "    clam:\n", r"myths.yaml line 5: the field `claim` of this myth is missing"),
        ("claimed: 2.5, ", "", r"line 5 \(all-reduce-averages\): no entry of `finds` has `claimed`"),
        ("value: 10, ", "", r"the field `value` of this number under `finds` is missing"),
        (
            "id: ring-sends-n-times",
            "id: all-reduce-averages",
            r"'all-reduce-averages' is taken by myths.yaml line 5; choose another",
        ),
        ("00_start_here#collective", "nowhere", r"`shown_by` is 'nowhere'; write notebook#cell"),
        ("myths:\n", "claims:\n", r"the file must hold a list under `myths:`"),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(tmp_path, old, new, sentence):
    file = changed(FOLDER / "myths.yaml", tmp_path, old, new)
    with pytest.raises(ValueError, match=sentence):
        myths(file)


def test_a_notebook_shows_claims_folded_over_truths_in_both_languages():
    page, myth = myths()._repr_html_(), MYTHS["mean-of-means"]
    assert page.count("<details") == page.count("</details>") == len(MYTHS) == repr(myths()).count("\n")
    assert "<details open" not in page
    assert myth.claim.zh in page and "<b>2.89</b>" in page
