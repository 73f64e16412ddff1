"""Chapters promise the minutes that their words, guesses, exercises and code take, and a planted edit breaks that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.notebooks import minutes
from tests.notebooks.chapter import ROOT, load, source
from tests.notebooks.test_shape import code, edited, markdown
from tools import promised_minutes
from tools.translate import read_table, table_of


@pytest.mark.parametrize("path", minutes.NUMBERED, ids=lambda path: path.stem)
def test_a_chapter_promises_the_minutes_that_it_takes(path):
    wrong = list(minutes.wrong_promises(load(path), path.stem))
    assert not wrong, f"python tools/promised_minutes.py --write {path.stem[:2]} writes the right ones"


@pytest.mark.parametrize("path", minutes.NUMBERED, ids=lambda path: path.stem)
def test_the_chinese_promises_the_same_sums(path):
    first = load(path)[0]
    chinese = read_table(table_of(path, "zh"))[first["id"]]["text"]
    assert minutes.promised_sums(chinese) == minutes.promised_sums(source(first))


# -- planted ---------------------------------------------------------------------------------------------------------
SHOWN = {
    "text/plain": "[source] ring · ring.py",
    "text/html": '<style>a</style><div>ring</div><pre style="b">'
    '<span style="opacity:.7;user-select:none"> 9  </span><span>def</span> ring():\n'
    '<span style="opacity:.7;user-select:none">10  </span>    import os\n'
    '<span style="opacity:.7;user-select:none">11  </span>\n'
    '<span style="opacity:.7;user-select:none">12  </span>    return 1 &lt; 2</pre>'
    "<details><summary>other</summary><pre>1  folded = 1\n2  folded = 2</pre></details>",
}
SUMS = "The ▶ path takes 21 minutes. All stations together take 24 minutes, and the interview corner takes 10 more."


@pytest.fixture
def good() -> list[dict]:
    """A chapter that promises what it takes: A and B, on the path, take 9 and 12 minutes, and C takes 3."""
    lines = "import torch\nfrom a import (\n    b,\n    c,\n)\n\n" + "a = 1\n" * 29
    shows = code("shows", "show(ring)") | {"outputs": [{"data": SHOWN}]}
    answer = f"<details><summary>One answer</summary>\n\n{'word ' * 500}\n\n</details>\n\n"
    return [
        markdown("title", f"# 08 · ZeRO\n\n{SUMS}\n\n{'word ' * 395}"),
        markdown("A-text", "## ▶ A · Title (9 min)"),
        code("A-guess", 'from a import guess\n\nguess("bytes",\n      unit="B", key="08.a")'),
        code("A-run", lines),
        shows,  # three lines: the call, and two of the shown ones
        code("A-folded", "a = 1\n" * 100, folded=True),
        code("A-script", 'script = "x"\nguess("lines", key="08.b")\nprint(script)'),
        markdown("B-text", f"{'word ' * 127} Text of A.\n\n## ▶ B · Title (12 min)\n\n{'word ' * 485}\n\nWrite it."),
        code("B-write", 'def shard(x):\n    a = 1\n    ...\n\n\nexercise("08.shard", shard)'),
        markdown("C-text", f"{answer}## C · Title (3 min)\n\n{'word ' * 370}\n\nWrite it (optional, 8 minutes)."),
        code("C-write", 'exercise("08.more", more)'),
        markdown("takeaways", f"## Takeaways\n\n{'word ' * 500}"),
        code("map", "a = 1\n" * 100),
    ]


def test_a_good_chapter_promises_what_it_takes(good):
    assert list(minutes.wrong_promises(good, "08_zero")) == []
    first, second, third = minutes.counted(good)
    assert (first.guesses, first.exercises, first.lines) == (2, 0, 29 + 3 + 2)
    assert (second.guesses, second.exercises, second.lines) == (0, 1, 0)
    assert (third.guesses, third.exercises, third.lines) == (0, 0, 0)
    assert [round(one.exact, 1) for one in (first, second, third)] == [8.9, 11.8, 2.9]


EDITS = [  # cell, what is replaced, by what, what the sentences hold
    ("A-text", "(9 min)", "(8 min)", "station A prints 8 minutes"),
    ("title", "21 minutes", "25 minutes", "path: the first cell prints [25], and [21] is right"),
    ("title", "The ▶ path takes 21 minutes. ", "", "path: the first cell prints no minutes"),
    ("title", "24 minutes", "37 minutes", "stations: the first cell prints [37], and [24] is right"),
    ("title", "10 more", "9 more", "corner: the first cell prints [9], and [10] is right"),
    ("title", "word ", "word word ", "station A prints 9 minutes"),
    ("B-text", "Text of A.", "word " * 130, "station A prints 9 minutes"),
    ("B-text", "Write it.", "word " * 130, "station B prints 12 minutes"),
    ("A-run", "a = 1\n", "a = 1\nb = 2\n", "station A prints 9 minutes"),
    ("B-write", "exercise", "print", "station B prints 12 minutes"),
    ("C-text", " (optional, 8 minutes)", "", "station C prints 3 minutes"),
    ("C-text", "One answer", "Why?", "station B prints 12 minutes"),
    ("C-write", "exercise", "guess", "station C prints 3 minutes"),
]


@pytest.mark.parametrize(("name", "old", "new", "said"), EDITS)
def test_a_planted_wrong_promise_is_found(good, name, old, new, said):
    assert said in " ".join(minutes.wrong_promises(edited(good, name, old, new), "08_zero"))


def test_a_chapter_whose_stations_are_all_on_the_path_prints_one_sum(good):
    short = edited(good, "C-text", "## C", "## ▶ C")
    short = edited(short, "title", "21 minutes", "24 minutes")
    assert "stations: the first cell prints [24], and none is right" in minutes.wrong_promises(short, "08_zero")
    short = edited(short, "title", "All stations together take 24 minutes, and", "And")
    assert list(minutes.wrong_promises(short, "08_zero")) == []


def test_a_heading_in_a_block_of_code_begins_no_station():
    cells = [markdown("a", "## A · One (1 min)\n\n```\n## B · Not one (1 min)\n```\n\nText.\n\n## C · Three (1 min)")]
    assert [source(cell)[:6] for cell in minutes.split_at_headings(cells)] == ["## A ·", "## C ·"]


# -- the tool --------------------------------------------------------------------------------------------------------
def copied(folder: Path, name: str, *, minutes_of_a: int) -> Path:
    """A copy of a chapter and of its Chinese in which station A and the sums have wrong minutes."""
    notebook = folder / f"{name}.ipynb"
    cells = {one.letter: one.minutes for one in minutes.counted(load(ROOT / "notebooks" / notebook.name))}
    wrong = dict.fromkeys(minutes.SUMS, 99)
    content = json.loads((ROOT / "notebooks" / notebook.name).read_text(encoding="utf-8"))
    table = (ROOT / "notebooks/zh" / f"{name[:2]}.yaml").read_text(encoding="utf-8")

    def change(_: str, text: str) -> str:
        return minutes.with_right_minutes(text, cells | {"A": minutes_of_a}, wrong)

    english = {}
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            english[cell["id"]] = change(cell["id"], source(cell))
            cell["source"] = english[cell["id"]].splitlines(keepends=True)
    notebook.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "zh").mkdir()
    (folder / "zh" / f"{name[:2]}.yaml").write_text(promised_minutes.with_entries(table, english, change), "utf-8")
    return notebook


def test_the_tool_writes_the_right_minutes_in_both_languages(tmp_path):
    notebook = copied(tmp_path, "03_ddp", minutes_of_a=98)
    assert len(list(minutes.wrong_promises(load(notebook), "03_ddp"))) == 4
    assert "98" in (tmp_path / "zh/03.yaml").read_text(encoding="utf-8")
    promised_minutes.write(notebook)
    for path in ("03_ddp.ipynb", "zh/03.yaml"):
        assert (tmp_path / path).read_bytes() == (ROOT / "notebooks" / path).read_bytes()


def test_the_tool_leaves_an_outdated_translation_outdated(tmp_path):
    notebook = copied(tmp_path, "03_ddp", minutes_of_a=98)
    content = json.loads(notebook.read_text(encoding="utf-8"))
    content["cells"][0]["source"].append("\n\nA new sentence.")
    notebook.write_text(json.dumps(content), encoding="utf-8")
    before = read_table(tmp_path / "zh/03.yaml")["title"]
    promised_minutes.write(notebook)
    assert read_table(tmp_path / "zh/03.yaml")["title"] == before


def test_the_tool_prints_a_table_and_refuses_a_chapter_that_does_not_exist(capsys):
    assert promised_minutes.main(["03"]) == 0
    said = capsys.readouterr().out
    assert "03_ddp" in said and "▶ A" in said and said.endswith("every number is right\n")
    with pytest.raises(SystemExit):
        promised_minutes.main(["77"])
    assert "no chapter has the number 77" in capsys.readouterr().err
