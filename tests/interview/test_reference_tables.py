"""Reference tables: terms have both languages, runs refute each myth, code of old posts runs, sources have evidence."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.interview.bank_file import chapters, load_all
from helpers.interview.card_html import evidence_link
from helpers.interview.cards import NotebookCell
from helpers.interview.reference_tables import (
    FOLDER,
    MythNumber,
    Refutation,
    glossary,
    myths,
    old_posts,
    sources,
)
from tests.interview.changed_file import changed
from tests.interview.shown_cells import NOTEBOOKS, missing
from tests.notebooks.chapter import CHAPTERS as PATHS

CHAPTERS = [path.stem for path in PATHS]
WORDS = glossary()
BY_ENGLISH = {name.casefold(): word for word in WORDS for name in (word.term, *word.also)}
NOTE = re.compile(r"([^（）]*?)\**（([A-Za-z][A-Za-z0-9 \-]*(?:, [a-z ]+)*)）")


def cells_of_glossary(chapter):
    return json.loads((NOTEBOOKS / f"{chapter}.ipynb").read_text(encoding="utf-8"))["cells"]


def summary(chapter):
    """What follows the last 本章要点 of a chapter: its last cell, or a table with the English beside it."""
    sources = ["".join(cell["source"]) for cell in cells_of_glossary(chapter) if cell["cell_type"] == "markdown"]
    return next(text for text in reversed(sources) if "本章要点" in text).partition("本章要点")[2]


def test_there_are_a_hundred_and_twenty_or_more():
    assert len(WORDS) >= 120


def test_a_word_is_one_sentence_and_its_cell_exists():
    assert {
        word.term: word.says for word in WORDS if not (is_one(word.says.en, r"\.(\s|$)") and is_one(word.says.zh, "。"))
    } == {}
    assert [said for word in WORDS if (said := missing(word.where, word.shown_by))] == []


def is_one(text, end):
    """Whether the text is one sentence: its only end stands at its end."""
    return [found.end() for found in re.finditer(end, text)] == [len(text)]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_says_its_words_as_the_glossary_does(chapter):
    """Where 本章要点 puts an English word in brackets behind a Chinese one, the two are a pair of the glossary."""
    strange = []
    for before, english in NOTE.findall(summary(chapter)):
        word = BY_ENGLISH.get(english.casefold())
        if word is not None and word.term in word.zh:
            continue  # Chinese has no other word for it, as for NVLink: an aside
        if word is None or not any(before.rstrip("*").endswith(chinese) for chinese in word.zh):
            strange.append((before[-8:], english))
    assert strange == []


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_summary_of_a_chapter_uses_words_of_the_glossary(chapter):
    text = summary(chapter).casefold()
    used = {word.term for word in WORDS if any(name.casefold() in text for name in word.names)}
    assert len(used) >= 8


def test_a_word_is_found_in_either_language_and_a_near_one_is_suggested():
    assert glossary("Bucket") is not None and glossary("流水线并行").term == "pipeline parallelism"
    assert glossary("clip").term == "gradient clipping"
    with pytest.raises(ValueError, match="'buckett' is not in the glossary; did you mean bucket"):
        glossary("buckett")
    with pytest.raises(ValueError, match=r"glossary\(\) shows all words"):
        glossary("xyzzyqqq")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "  - term: world size\n",
            "  - term: Rank\n",
            r"glossary.yaml line \d+: 'Rank' is taken by glossary.yaml line \d+",
        ),
        ("    zh: [进程总数]\n", "", r"line \d+: the field `zh` of this term is missing"),
        ("zh: [进程总数]", "zh: []", r"\(world size\): `zh` is empty; give the usual Chinese term"),
        ("terms:\n", "words:\n", r"must hold a list under `terms:`"),
    ],
)
def test_a_wrong_glossary_file_is_reported_in_one_sentence(tmp_path, old, new, sentence):
    file = changed(FOLDER / "glossary.yaml", tmp_path, old, new)
    with pytest.raises(ValueError, match=sentence):
        glossary(file=file)


def test_a_notebook_shows_the_words_folded_by_chapter():
    page = WORDS._repr_html_()
    assert page.count("<tr>") == page.count("</tr>") == len(WORDS)
    assert page.count("<details") == repr(WORDS).count("\n") and "<details open" not in page


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
        ("value: 10, ", "", r"line 14: the field `value` of this entry of `finds` is missing"),
        (
            "id: ring-sends-n-times",
            "id: all-reduce-averages",
            r"'all-reduce-averages' is taken by myths.yaml line 5; choose another",
        ),
        ("00_start_here#collective", "nowhere", r"`shown_by` is 'nowhere'; write notebook#cell"),
        ("myths:\n", "claims:\n", r"the file must hold a list under `myths:`"),
    ],
)
def test_a_wrong_myths_file_is_reported_in_one_sentence(tmp_path, old, new, sentence):
    file = changed(FOLDER / "myths.yaml", tmp_path, old, new)
    with pytest.raises(ValueError, match=sentence):
        myths(file)


def test_a_notebook_shows_claims_folded_over_truths_in_both_languages():
    page, myth = myths()._repr_html_(), MYTHS["mean-of-means"]
    assert page.count("<details") == page.count("</details>") == len(MYTHS) == repr(myths()).count("\n")
    assert "<details open" not in page
    assert myth.claim.zh in page and "<b>2.89</b>" in page


POSTS = {post.id: post for post in old_posts()}
CIRCULATES = (
    "nn.DataParallel", "torch.cuda.amp", "amp.initialize", "pipeline.sync.Pipe", "fairscale.nn.Pipe",
    "torch.distributed.launch", "ElasticAgent", "torch.jit.script", "config_params", "NCCL_",
)  # fmt: skip


def by(where):
    return [name for name, post in POSTS.items() if post.runs == where]


def names():
    import torch
    import torch.nn.functional as F
    from torch import nn

    return {"torch": torch, "nn": nn, "F": F, "device": "cpu"}


def test_what_circulates_has_a_row():
    assert [written for written in CIRCULATES if not any(written in post.old for post in POSTS.values())] == []


@pytest.mark.parametrize("name", by("process"))
def test_today_runs_in_a_process(name):
    exec(compile(POSTS[name].code, name, "exec"), names())


@pytest.mark.parametrize("name", by("ranks"))
def test_today_runs_on_ranks(name, ranks):
    def run(code):
        import torch.distributed as dist

        exec(compile(code, name, "exec"), names() | {"dist": dist, "rank": dist.get_rank()})

    post = POSTS[name]
    if post.since and torch.__version__ < post.since:
        pytest.skip(f"torch {torch.__version__} is older than {post.since}, where today's form begins")
    ranks[:2].run(run, post.code)


@pytest.mark.parametrize("name", by("torchrun"))
def test_today_runs_under_torchrun(name, tmp_path):
    post = POSTS[name]
    if post.needs and importlib.util.find_spec(post.needs) is None:
        pytest.skip(f"{post.needs} is not installed: it is of the extra `engines`")
    script = tmp_path / "script.py"
    script.write_text(post.code, encoding="utf-8")
    launch = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    quiet = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *post.launch, script], capture_output=True, text=True, timeout=150, env=quiet)
    assert done.returncode == 0, done.stderr
    assert [line for line in post.prints if line not in done.stdout] == []


@pytest.mark.parametrize("name", [name for name, post in POSTS.items() if post.gone])
def test_what_is_gone_cannot_be_imported(name):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(POSTS[name].gone)


@pytest.mark.parametrize("name", [name for name, post in POSTS.items() if post.warns])
def test_torch_warns_of_the_old_code(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(POSTS[name].warns, names())
    assert any("deprecated" in str(one.message) for one in caught)


def test_a_row_belongs_to_a_chapter_and_fits_its_column():
    assert {post.chapter for post in POSTS.values()} <= {*chapters(), "interview"}
    lines = [line for post in POSTS.values() for line in (post.old + "\n" + post.today).splitlines()]
    assert [line for line in lines if len(line) > 62] == []


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("    runs: ranks\n", "    runs: anywhere\n", r"\(data-parallel\): `runs` is 'anywhere'; it must be one of"),
        ("    chapter: 02_data_parallel\n", "", r"old_posts.yaml line 6: the field `chapter` of this post is missing"),
        ("id: cuda-amp", "id: data-parallel", r"'data-parallel' is taken by old_posts.yaml line 6; choose"),
        ("posts:\n", "post:\n", r"must hold a list under `posts:`"),
    ],
)
def test_a_wrong_old_posts_file_is_reported_in_one_sentence(tmp_path, old, new, sentence):
    file = changed(FOLDER / "old_posts.yaml", tmp_path, old, new)
    with pytest.raises(ValueError, match=sentence):
        old_posts(file)


def test_the_table_has_a_row_for_each_and_takes_its_colours_from_the_page():
    page = old_posts()._repr_html_()
    assert page.count("<pre") == 2 * len(POSTS) == 2 * repr(old_posts()).count("\n")
    assert not re.search(r"color:\s*#|color:\s*(black|white)", page)


ROOT = Path(__file__).parents[2]
ITEMS = sources()
KNOWN = {
    "card": {card.id for card in load_all()},
    "post": {post.id for post in old_posts()},
    "myth": {myth.id for myth in myths()},
}
MOST_IN_WORDS = 10


@functools.cache
def cells_of_sources(notebook: str) -> dict[str, str]:
    """The ids of a notebook's cells with their kind; none where it is not there."""
    path = NOTEBOOKS / f"{notebook}.ipynb"
    found = json.loads(path.read_text(encoding="utf-8"))["cells"] if path.exists() else []
    return {cell["id"]: cell["cell_type"] for cell in found}


def is_there(shown: str) -> bool:
    kind, _, name = shown.partition(":")
    if kind in KNOWN:
        return name in KNOWN[kind]
    if kind == "test":
        return (ROOT / name).is_file()
    notebook, _, cell = shown.partition("#")
    return shown.startswith("https://") or cell in cells_of_sources(notebook)


def test_each_of_the_119_has_a_row_none_is_missing_and_few_are_in_words_only():
    assert sorted(item.n for item in ITEMS) == list(range(1, 120))
    assert sum(ITEMS.answers.values()) == 119 and ITEMS.answers["words"] <= MOST_IN_WORDS


def test_every_place_is_there():
    assert [(item.n, shown) for item in ITEMS for shown in item.shown if not is_there(shown)] == []


def test_what_is_run_is_run_by_a_cell_of_code():
    named = {
        item.n: [cells_of_sources(one.partition("#")[0]).get(one.partition("#")[2]) for one in item.shown]
        for item in ITEMS
    }
    assert [item.n for item in ITEMS if item.answer in ("run", "part") and "code" not in named[item.n]] == []


def test_only_what_a_document_prints_stands_there_as_printed():
    """The documents' own texts at these places are known; an item that they do not print has a topic."""
    printed = {item.n: item.printed for item in ITEMS}
    assert {n for n, text in printed.items() if not text} == {44, 46, 62, 64, 99, 100}
    known = {
        10: "several times", 12: "graph LR", 43: "batch_size=10", 56: "2000", 57: "false", 68: "nn.Linear(4096, 2048)",
        69: "transform=ToTensor())", 97: "local_world_size=8, entrypoint=train_fn",
    }  # fmt: skip
    assert [n for n, text in known.items() if text not in printed[n]] == []


def test_every_cell_of_the_page_that_runs_something_is_named_by_an_item():
    shown = {shown.partition("#")[2] for item in ITEMS for shown in item.shown if shown.startswith("sources#")}
    others = {"opening", "close", *(f"{document}-table" for document in ("S0", "S1", "S2", "S3"))}
    code = {name for name, kind in cells_of_sources("sources").items() if kind == "code"}
    assert code - others <= shown


def test_places_have_addresses():
    assert evidence_link("03_ddp#prove") == ("03_ddp · prove", "03_ddp.ipynb#cell-id=prove")
    assert evidence_link("post:sync-pipe") == ("post sync-pipe", "interview.ipynb#cell-id=old-posts")
    assert evidence_link("card:ddp-in-one-minute")[1].startswith("03_ddp.ipynb#cell-id=")
    assert evidence_link("test:tests/a.py") == ("tests/a.py", "") and evidence_link("https://a.b/c") == (
        "a.b/c",
        "https://a.b/c",
    )


def test_a_table_has_a_row_with_an_anchor_for_each_item_of_a_document():
    by_document = [sources(document) for document in ("S0", "S1", "S2", "S3")]
    assert sum(map(len, by_document)) == 119
    page = by_document[1]._repr_html_()
    assert page.count("<tr id=") == len(by_document[1]) and 'id="item-68"' in page and "<b>run</b>" in page
    assert repr(by_document[1]).startswith(f"{len(by_document[1])} items: run ")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("    of: S0 S2\n", "    of: S9\n", r"line 5 \(1\): `of` is 'S9'; name documents of S0, S1, S2, S3"),
        (
            "    answer: run\n",
            "    answer: missing\n",
            r"`answer` is 'missing'; it must be one of run, part, test, words",
        ),
        ("    answer: run\n", "    answer: test\n", r"`test` needs a test:path under `shown`"),
        ("  - n: 2\n", "  - n: 1\n", r"'1' is taken by sources.yaml line"),
        ("    of: S0 S2\n", "", r"the field `of` of this item is missing"),
        ("    of: S0 S2\n", "    of: S0 S2\n    topic: axes\n", r"give `printed`, .* or `topic`, ours, and not both"),
    ],
)
def test_a_wrong_sources_file_is_reported_in_one_sentence(tmp_path, old, new, sentence):
    with pytest.raises(ValueError, match=sentence):
        sources(file=changed(FOLDER / "sources.yaml", tmp_path, old, new))


def test_an_unknown_document_gets_a_sentence():
    with pytest.raises(ValueError, match="there is no document 'S4'; the documents are S0, S1, S2, S3"):
        sources("S4")
