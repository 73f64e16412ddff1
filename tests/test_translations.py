"""Chinese texts are of today's English, with its links and code, and are written as Chinese is; copies run the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from helpers.learner.course import read_cells
from tools import lay_course, translate

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = [path for folder in ("notebooks", "labs") for path in sorted((ROOT / folder).glob("*.ipynb"))]
CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
TABLES = {path: translate.table_of(path, "zh") for path in NOTEBOOKS if translate.table_of(path, "zh").exists()}
FENCE = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)", re.DOTALL | re.MULTILINE)
SAME = {  # what a translation has as its English has it
    "code blocks": FENCE,
    "inline code": re.compile(r"`[^`]+`"),
    "links": re.compile(r"\]\([^)\s]+|(?:src|href)=\"[^\"]+"),
    "headings": re.compile(r"^#+ (?:▶ )?(?:[A-Z] · |\d\d · )?", re.MULTILINE),
    "minutes": re.compile(r"^## .*?[(（](\d+)", re.MULTILINE),
    "tags": re.compile(r"</?(?:details|summary|img|a)\b"),
    "rows of tables": re.compile(r"^\|", re.MULTILINE),
}
_HAN = "[\u4e00-\u9fff]"
STYLE = {
    "a space between Chinese and Latin": re.compile(rf"{_HAN}[A-Za-z0-9`]|[A-Za-z0-9`]{_HAN}"),
    "full-width punctuation": re.compile(rf"{_HAN}[,;:?!(]|[,;:?!)]{_HAN}|。\.|[！]"),
}


def differ(english: str, chinese: str) -> list[str]:
    """What a translation has more or less of than its English."""
    found = []
    for name, pattern in SAME.items():
        texts = (text if pattern is FENCE else FENCE.sub("", text) for text in (english, chinese))
        before, after = (sorted(" ".join(one.split()) for one in pattern.findall(text)) for text in texts)
        found += [f"{name}: {before} became {after}"] * (before != after)
    return found


def badly_written(chinese: str) -> list[str]:
    text = re.sub(r"\]\([^)\s]*\)|<[^>]*>|[*_]{1,2}", "", FENCE.sub("", chinese))
    text = re.sub(r"`[^`]*`", lambda code: "`" * len(code[0]), text)
    return [
        f"{rule}: …{text[max(found.start() - 12, 0) : found.end() + 12]}…"
        for rule, pattern in STYLE.items()
        for found in pattern.finditer(text)
    ]


@pytest.mark.parametrize(("path", "table"), TABLES.items(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_translation_is_of_todays_english_and_says_the_same(path, table):
    content, entries = path.read_bytes(), translate.read_table(table)
    known = translate.translatable(content)
    old, number = translate.stale(content, entries), table.stem
    assert not old, f"stale: {', '.join(old)}. See tools/translate.py --stale {number}, mend, then --hash {number}"
    assert not entries.keys() - known.keys(), "ids of no Markdown cell"
    wrong = {
        name: [*differ(known[name], entry["text"]), *badly_written(entry["text"])] for name, entry in entries.items()
    }
    assert not {name: found for name, found in wrong.items() if found}


def test_every_table_has_its_notebook():
    assert {*ROOT.glob("notebooks/zh/*"), *ROOT.glob("labs/zh/*")} == set(TABLES.values())


def test_a_chinese_copy_of_every_notebook_has_the_same_code_ids_tags_and_stations(tmp_path):
    for language in ("en", "zh"):
        lay_course.lay(ROOT, tmp_path / language, language=language)
    copies = [path.relative_to(tmp_path / "en") for path in sorted((tmp_path / "en").rglob("*.ipynb"))]
    assert len(copies) == len(NOTEBOOKS)
    for copy in copies:
        english, chinese = (json.loads((tmp_path / each / copy).read_text())["cells"] for each in ("en", "zh"))
        assert [frame(cell) for cell in english] == [frame(cell) for cell in chinese], copy
        assert [walk(one) for one in read_cells(english)] == [walk(one) for one in read_cells(chinese)], copy


def frame(cell):
    return {key: value for key, value in cell.items() if key != "source" or cell["cell_type"] == "code"}


def walk(one):
    return one.letter, one.minutes, one.on_path, one.guesses, one.exercises, one.first, one.last


@pytest.mark.parametrize("name", ["README.zh.md", "docs/guide.zh.md"])
def test_chinese_pages_are_well_written(name):
    assert not badly_written((ROOT / name).read_text(encoding="utf-8"))


def test_the_chinese_readme_has_every_chapter_and_leads_back():
    text = (ROOT / "README.zh.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d\d) \|", text, re.MULTILINE) == [path.stem[:2] for path in CHAPTERS]
    assert "(README.md)" in text and "(README.zh.md)" in (ROOT / "README.md").read_text()


# -- planted ---------------------------------------------------------------------------------------------------------
ENGLISH = "## ▶ A · Who? (6 min)\n\nSee [it](a.ipynb) and `x`."
CHINESE = "## ▶ A · 谁？（6 分钟）\n\n见[这里](a.ipynb)和 `x`。"


def test_a_good_translation_has_nothing_to_mend():
    assert not differ(ENGLISH, CHINESE) and not badly_written(CHINESE)
    assert not badly_written("**阶段** 3，`y`（z）：[a](b) 的 3 个 rank")


@pytest.mark.parametrize(
    ("old", "new"), [("▶ ", ""), ("A", "B"), ("6", "7"), ("a.ipynb", "b.ipynb"), ("`x`", "x"), ("## ", "### ")]
)
def test_a_planted_difference_is_found(old, new):
    assert differ(ENGLISH, CHINESE.replace(old, new))


@pytest.mark.parametrize("text", ["用ring 发送", "用 ring发送", "每步,一次", "看（这里)这", "见 `x`的", "好！"])
def test_planted_bad_writing_is_found(text):
    assert badly_written(text)


# -- laid ------------------------------------------------------------------------------------------------------------
NAME = "03_ddp.ipynb"


def write(root, *texts, table=None):
    """A chapter of Markdown cells a, b, … and its translation."""
    (root / "notebooks" / "zh").mkdir(parents=True, exist_ok=True)
    named = zip("abc", texts, strict=False)
    cells = [{"cell_type": "markdown", "id": name, "metadata": {}, "source": [text]} for name, text in named]
    (root / "notebooks" / NAME).write_text(json.dumps({"cells": cells}))
    entries = ((name, translate.hash_of(old), text) for name, (old, text) in (table or {}).items())
    lines = [f"{name}:\n  hash: {old}\n  text: |\n    {text}\n" for name, old, text in entries]
    (root / "notebooks" / "zh" / "03.yaml").write_text("".join(lines))


@pytest.fixture
def course(tmp_path):
    write(tmp_path, "One.", "Two now.", "Three.", table={"a": ("One.", "一。"), "b": ("Two.", "二。")})
    return tmp_path


def laid(root, language):
    (one,) = lay_course.lay(root, root / "work", language=language)
    cells = json.loads((root / "work" / NAME).read_text())["cells"]
    return one.outcome, ["".join(cell["source"]) for cell in cells]


def test_what_is_stale_or_missing_stays_english_and_is_listed(course):
    assert laid(course, "zh") == ("laid", ["一。", "Two now.", "Three."])
    path = course / "notebooks" / NAME
    assert translate.stale(path.read_bytes(), translate.read_table(translate.table_of(path, "zh"))) == ["b"]
    assert not (course / "work" / "zh").exists() and translate.translated(b"no notebook", {}) == b"no notebook"


def test_another_language_lays_untouched_copies_again_and_no_others(course):
    laid(course, "en")
    assert laid(course, "zh")[0] == "updated" and laid(course, "en")[0] == "updated"
    laid(course, "zh")
    mine = {"cells": [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["mine"]}]}
    (course / "work" / NAME).write_text(json.dumps(mine))
    assert laid(course, "en") == laid(course, "zh") == ("kept", ["mine"])
    write(course, "Four.", table={"a": ("Four.", "四。")})
    assert laid(course, "zh") == ("beside", ["mine"]) and "四" in (course / "work" / "03_ddp.new.ipynb").read_text()
    assert laid(course, "en") == ("kept", ["mine"])


def test_what_is_left_to_do_shows_the_diff_of_what_is_stale(course, monkeypatch):
    path = course / "notebooks" / NAME
    monkeypatch.setattr("tools.translate._earlier", lambda *_: ["Zero.", "Two."])
    first, second = translate.left_to_do(path)
    assert "-Two.\n+Two now." in first and second.startswith("c:\n  hash: ")


# -- pairs of English and Chinese outside Markdown -------------------------------------------------------------------
GUESS = json.dumps({"cells": [{"cell_type": "code", "source": ['guess("How many?", key="03.n", choices=["1", "2"])']}]})
PAIRS = {
    "helpers/words.yaml": "line: {en: rank, zh: 进程}\nother: {en: one, zh: 一}\n",
    "helpers/guesses/03.yaml": "03.n:\n  answer: 1\n  zh: 多少？\n",
    "helpers/code.py": 'TEXT = Words(en="a cell", zh="单元格")\n',
    "notebooks/03_ddp.ipynb": GUESS,
}


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("helpers/words.yaml", "en: rank", "en: process"),
        ("helpers/code.py", "a cell", "one cell"),
        ("notebooks/03_ddp.ipynb", "How many?", "How many ranks?"),
        ("notebooks/03_ddp.ipynb", "2", "3"),
    ],
)
def test_a_pair_whose_english_alone_changed_is_listed(path, old, new):
    now = PAIRS | {path: PAIRS[path].replace(old, new)}
    assert len(translate.changed_pairs(translate.pairs_of(PAIRS), translate.pairs_of(now))) == 1


BOTH_CHANGED = {"helpers/moved/words.yaml": "line: {en: process, zh: 一个进程}\nother: {en: one, zh: 一}\n"}
MOVED = {"helpers/other.py": PAIRS["helpers/code.py"]}
USES_THE_CHINESE_OF_ANOTHER = {"helpers/more.yaml": "new: {en: a single one, zh: 一}\n"}


@pytest.mark.parametrize("now", [BOTH_CHANGED | MOVED, PAIRS | USES_THE_CHINESE_OF_ANOTHER], ids=["moved", "new"])
def test_a_pair_that_moved_or_changed_in_both_languages_or_is_new_is_not_listed(now):
    assert translate.changed_pairs(translate.pairs_of(PAIRS), translate.pairs_of(now)) == []


def test_pairs_are_compared_with_a_commit_and_a_missing_commit_is_said(capsys):
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    assert len(list(translate.pairs_of(translate.files_at("HEAD")))) > 6000
    assert translate.main(["--pairs", "0" * 40]) == 0 and "were not compared" in capsys.readouterr().out
