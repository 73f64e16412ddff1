"""`make links` writes the repository's addresses into README and two notebooks, and takes them away again."""

from __future__ import annotations

import builtins
import importlib.util
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from tools.links import CELL, CHAPTERS, END, ROOT, START, TEXTS, Links, install_cell, main, with_links, write_links
from tools.tidy_notebooks import tidy_file

LINKS = Links(repo="ada/ranks")
FILES = [*TEXTS, *(f"notebooks/{name}.ipynb" for name in CHAPTERS)]


@pytest.fixture
def root(tmp_path) -> Path:
    """The four files that the tool changes, in another folder, without links."""
    (tmp_path / "notebooks").mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    write_links(tmp_path, None)
    return tmp_path


def contents(root: Path) -> dict[str, str]:
    return {name: (root / name).read_text(encoding="utf-8") for name in FILES}


def test_links_are_written_once_and_removed_without_a_trace(root, capsys):
    before = contents(root)
    assert main(["--root", str(root), "--repo", "ada/ranks"]) == 0
    first = contents(root)
    assert all(first[name] != before[name] and "ada/ranks" in first[name] for name in FILES)
    assert main(["--root", str(root), "--repo", "ada/ranks"]) == 0 and contents(root) == first
    assert main(["--root", str(root), "--repo", "bob/other", "--branch", "dev"]) == 0
    assert not any("ada/ranks" in text for text in contents(root).values())
    assert main(["--root", str(root)]) == 0 and contents(root) == before
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(f"have links to ada/ranks; changed: {', '.join(FILES)}")
    assert said[1].endswith("changed: nothing") and "have no links" in said[3]


@pytest.mark.parametrize("name", TEXTS)
def test_a_readme_leads_to_colab_binder_and_the_book(root, name):
    write_links(root, LINKS)
    text = (root / name).read_text(encoding="utf-8")
    written = text.partition(START)[2].partition(END)[0]
    book = "https://ada.github.io/ranks/" + ("zh/" if ".zh." in name else "")
    assert set(re.findall(r"\]\((\S+?)\)(?!\])", re.sub(r"!\[[^\]]*\]\([^)]*\)", "", written))) == {
        "https://github.com/ada/ranks/actions/workflows/ci.yml",
        "https://colab.research.google.com/github/ada/ranks/blob/main/notebooks/00_start_here.ipynb",
        "https://colab.research.google.com/github/ada/ranks/blob/main/notebooks/08_zero.ipynb",
        "https://mybinder.org/v2/gh/ada/ranks/main?urlpath=lab/tree/notebooks/00_start_here.ipynb",
        book,
    }
    assert len(text.splitlines()) <= 90 and len(text.split()) <= 1000  # as tests/test_readme.py asks


def test_what_is_named_by_the_links_exists():
    assert (ROOT / ".github" / "workflows" / "ci.yml").is_file() and (ROOT / "environment.yml").is_file()
    assert all((ROOT / name).is_file() for name in FILES)


def test_the_book_may_be_at_another_address_and_colab_may_use_another_branch():
    addresses = Links(repo="ada/ranks", branch="v1.0", book="https://ada.example/course").addresses
    assert addresses["book"] == "https://ada.example/course/"
    assert "/blob/v1.0/notebooks/" in addresses["colab_08"] and "/ada/ranks/v1.0?" in addresses["binder"]
    assert "https://github.com/ada/ranks@v1.0" in install_cell(Links(repo="ada/ranks", branch="v1.0"))


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--repo", "ada"], "REPO=ada is no repository"),
        (["--repo", "https://github.com/ada/ranks"], "write owner/name"),
        (["--repo", "ada/ranks)"], "is no repository"),
        (["--repo", "ada/ranks", "--branch", "a b"], "BRANCH=a b is no name of a branch"),
        (["--repo", "ada/ranks", "--book", "ada.example"], "BOOK=ada.example is no address"),
    ],
)
def test_a_wrong_value_gets_a_sentence_and_changes_nothing(root, capsys, options, wrong):
    before = contents(root)
    assert main(["--root", str(root), *options]) == 1 and contents(root) == before
    said = capsys.readouterr().err
    assert said.startswith("Nothing was changed. ") and wrong in said and said.count("\n") == 1


def test_a_readme_without_the_place_gets_a_sentence():
    with pytest.raises(ValueError, match="README.md must have the lines"):
        with_links("# Rank by Rank\n", "README.md", LINKS)


# -- the cell that installs the course -------------------------------------------------------------------------------
def run(source: str, monkeypatch, *, is_there: bool) -> list[str]:
    """Run a cell where `helpers` is there or is not. Returns the magics that it called."""
    called = []
    shell = type("Shell", (), {"run_line_magic": lambda self, name, line: called.append(f"%{name} {line}")})
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: is_there if name == "helpers" else None)
    exec(compile(TransformerManager().transform_cell(source), "cell", "exec"), {})
    return called


@pytest.mark.parametrize("links", [LINKS, None])
def test_the_cell_does_nothing_where_the_course_is_installed(monkeypatch, links):
    assert run(install_cell(links), monkeypatch, is_there=True) == []


def test_the_cell_installs_the_course_where_it_is_missing(monkeypatch):
    called = run(install_cell(LINKS), monkeypatch, is_there=False)
    assert called == ['%pip install --quiet "rank-by-rank @ git+https://github.com/ada/ranks@main"']


def test_without_a_repository_the_cell_says_what_to_do(monkeypatch):
    with pytest.raises(ImportError, match="open this notebook with `make course`"):
        run(install_cell(None), monkeypatch, is_there=False)


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_first_code_cell_is_short_and_the_notebook_stays_tidy(root, name):
    for links in (LINKS, None):
        write_links(root, links)
        path = root / "notebooks" / f"{name}.ipynb"
        first = next(cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
        assert first.id == CELL and CELL in first.metadata.tags and first.source == install_cell(links)
        assert len(first.source.splitlines()) <= 5 and not first.outputs
        assert tidy_file(path, check=True) == []
