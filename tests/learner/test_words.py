"""What a person reads is there in every language, and one choice of the language is followed everywhere."""

from __future__ import annotations

import ast
import pickle
import re
import string
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from helpers.grading import grade
from helpers.learner.words import FOLDER, LANGUAGES, Words, book, language, store_language
from helpers.learner.yaml_file import read_yaml
from helpers.ranks import RankError
from tools import lay_course

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*FOLDER.glob("*.yaml"), *(ROOT / "helpers" / "grading").glob("*/[hm]*s.yaml")])
CHINESE = re.compile(r"[\u4e00-\u9fff]")
SMALL = re.compile(r"\s|s\b|\bthe\b")
OF_ANOTHER_KIND = ["bad_arguments"]  # argparse says in English what is wrong; the others show what was typed


def braces(template: str) -> set[str]:
    """The names between braces, without those that only choose between singular and plural."""
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError:
        return set()  # a text with braces of its own, which nobody formats
    names = [name for _, name, spec, _ in fields if name is not None and not spec.startswith("?")]
    return {re.split(r"[.\[]", name or str(number))[0] for number, name in enumerate(names)}


def lacking(words: Words) -> list[str]:
    """What is wrong with one text."""
    if SMALL.sub("", words.en) == SMALL.sub("", words.zh):  # code, or the word rank
        return ["Chinese that stands where the same text serves all languages"] if CHINESE.search(words.en) else []
    says_something = re.search("[A-Za-z]{2}", re.sub(r"{[^}]*}|\brank\b", "", words.zh))
    wrong = [f"no Chinese in {words.zh!r}"] if says_something and not CHINESE.search(words.zh) else []
    wrong += [f"Chinese in {words.en!r}"] if CHINESE.search(words.en) else []
    return wrong + ([f"braces differ: {words.en!r}, {words.zh!r}"] if braces(words.en) != braces(words.zh) else [])


# -- nothing lacks a language ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT / "helpers").as_posix())
def test_every_word_has_every_language_and_its_own_name(path):
    read_yaml(path)  # raises where a name stands twice
    wrong = {name: lacking(words) for name, words in book(path.stem, path.parent).items() if lacking(words)}
    assert [name for name in wrong if name not in OF_ANOTHER_KIND] == [], wrong


def test_words_in_python_have_every_language():
    wrong, found = {}, 0
    for path in sorted((ROOT / "helpers").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Words" and node.keywords:
                texts = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
                if texts.keys() == LANGUAGES.keys() and (lacks := lacking(Words(**texts))):
                    wrong[f"{path.name} line {node.lineno}"] = lacks
                found += 1
    assert found > 30 and not wrong


def test_languages_are_listed_once():
    lists = [path for path in (ROOT / "helpers").rglob("*.py") if re.search(r'"en", *"zh"', path.read_text("utf-8"))]
    assert not lists, "helpers.learner.words.LANGUAGES has them"


@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        ("up: {en: up}", "`up` has the languages en; write en, zh"),
        ("up: {en: up, zh: 上, fr: haut}", "`up` has the languages en, zh, fr; write en, zh"),
        ("up: [1]", "`up` is .*; write a text"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, yaml, says):
    (tmp_path / "some.yaml").write_text(yaml, encoding="utf-8")
    with pytest.raises(ValueError, match=says):
        book("some", tmp_path)["up"]


def test_the_walk_finds_what_is_missing():
    for en, zh in (("a {b}", "一 {c}"), ("word", "other"), ("一", "一"), ("一", "二")):
        assert lacking(Words(en=en, zh=zh))
    assert not lacking(Words(en="{n} card{n:?s}", zh="{n} 张"))


# -- the type --------------------------------------------------------------------------------------------------------
def test_braces_are_filled_in_each_language():
    inner = Words(en="{n} rank{n:?s}", zh="{n} 个 rank")
    whole = Words(en="with {world}: {ops:*, | and }", zh="{world}：{ops:*、}")
    whole = whole.format(world=inner.format(n=3), ops="abc")
    assert whole == Words(en="with 3 ranks: a, b and c", zh="3 个 rank：a、b、c")
    assert inner.format(n=1).en == "1 rank"
    assert Words(en="{n:?has|have}", zh="有").format(n=2).en == "have"
    assert pickle.loads(pickle.dumps(whole)) == whole


# -- the choice ------------------------------------------------------------------------------------------------------
@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RANKS_LANGUAGE")
    monkeypatch.delenv("RANKS_HOME", raising=False)  # it would replace the home
    return tmp_path


def test_the_caller_then_the_variable_then_the_progress_file_then_english(home, monkeypatch):
    assert language() == "en"
    store_language("zh")
    assert language() == "zh" and f"{Words(en='up', zh='上')}" == "上"
    store_language("en")
    assert language() == "en"
    store_language("zh")
    monkeypatch.setenv("RANKS_LANGUAGE", "en")
    assert language() == "en" and language("zh") == "zh"


def test_an_unknown_language_gets_the_list(home, monkeypatch):
    with pytest.raises(ValueError, match=r'language is \'fr\': there are "en" \(English\) and "zh" \(简体中文\)'):
        language("fr")
    with pytest.raises(ValueError, match="language is 'fr'"):
        store_language("fr")
    monkeypatch.setenv("RANKS_LANGUAGE", "fr")
    with pytest.raises(ValueError, match="RANKS_LANGUAGE is 'fr': there are"):
        language()


def test_a_language_of_a_later_course_is_passed_over(home):
    (home / ".rank-by-rank").mkdir()
    line = '{"time": "2030-01-01T00:00:00+00:00", "kind": "language", "key": "tlh", "passed": true}\n'
    (home / ".rank-by-rank" / "progress.jsonl").write_text(line)
    assert language() == "en"


def test_an_import_reads_no_words():
    code = (
        "import helpers.learner.words, helpers.draw, sys; sys.exit('yaml' in sys.modules or 'filelock' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# -- what follows it -------------------------------------------------------------------------------------------------
def test_make_course_keeps_the_choice(home, capsys):
    assert lay_course.main(["--root", str(home), "--language", "zh"]) == 0
    assert language() == "zh"
    assert lay_course.main(["--root", str(home), "--language", "fr"]) == 1
    assert "language is 'fr': there are" in capsys.readouterr().err and language() == "zh"


def meet():
    return dist.get_rank()


def differ():
    dist.all_reduce(torch.ones(dist.get_rank() + 1))


def leave():
    if dist.get_rank() == 1:
        raise ValueError("no luck")
    dist.barrier()


@pytest.mark.parametrize(
    ("task", "kind", "says"),
    [
        (leave, "exception", ["rank 1 抛出 ValueError: no luck\n  位于 test_words.py 第", "rank 0 在 barrier 中等待"]),
        (differ, "mismatch", ["全局进程组（rank 0、1）的第 1 个操作不一致", "rank 1 调用 all_reduce SUM float32 (2,)"]),
    ],
)
def test_an_error_on_ranks_is_in_the_language_chosen(ranks, home, task, kind, says):
    ranks[:2].run(meet)  # both have this file now
    store_language("zh")
    with pytest.raises(RankError) as caught:
        ranks[:2].run(task)
    shown = str(caught.value)
    assert caught.value.kind == kind and all(one in shown for one in says), shown
    assert shown.endswith("变量都保留着，下一个单元格可以照常运行。")
    assert "rank 1" in caught.value.words.en and not CHINESE.search(caught.value.words.en)
    assert "变量都保留着" in "".join(caught.value._render_traceback_())


def stuck(model):
    for parameter in [p for p in model.parameters() if p.requires_grad] if dist.get_rank() == 0 else ():
        dist.all_reduce(parameter.grad)


@pytest.mark.parametrize("way", ["file", "variable", "argument"])
def test_a_verdict_is_in_the_language_chosen(ranks, home, monkeypatch, way):
    if way == "file":
        store_language("zh")
    if way == "variable":
        monkeypatch.setenv("RANKS_LANGUAGE", "zh")
    verdict = grade("03.average", stuck, ranks=ranks, lang="zh" if way == "argument" else None)
    said = str(verdict)
    assert "还没通过" in said and "2 个 rank 时程序卡住：" in said and "在 all_reduce 中等待" in said, said
    assert "hangs" in verdict.text("en") and not CHINESE.search(verdict.text("en"))
