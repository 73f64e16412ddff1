"""Every relative link in the prose leads to a file that is there, and every heading linked to exists. No network."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from tools import lay_course
from tools.laid_links import as_laid

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)|<(?:img|a)\b[^>]*?(?:src|href)=\"([^\"]+)\"")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
ELSEWHERE = ("http://", "https://", "mailto:", "attachment:", "data:")


def documents() -> list[Path]:
    prose = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
    chapters = [path for folder in ("notebooks", "labs", "solutions") for path in (ROOT / folder).glob("*.ipynb")]
    return sorted([*prose, *chapters])


def prose_of(path: Path) -> str:
    """The Markdown of a document, code taken out."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def links(path: Path) -> list[str]:
    found = [unquote(first or second) for first, second in LINK.findall(prose_of(path))]
    return [link for link in found if not link.startswith(ELSEWHERE)]


def anchors(path: Path) -> set[str]:
    """Names under which GitHub or JupyterLab reach a heading of this document."""
    titles = re.findall(r"^#{1,6} +(.+?) *#*$", prose_of(path), re.MULTILINE)
    github = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return github | {title.replace(" ", "-") for title in titles}


def laid(path: Path, link: str) -> Path | None:
    """What a learner's copy of `path` in work/ reaches by this link: the original of that."""
    copies = lay_course.originals(ROOT)
    own = next((Path(copy).parent for copy, original in copies.items() if original == path), Path())
    (changed,) = re.findall(r"\((.*)\)", as_laid(f"[]({link})".encode()).decode())
    return copies.get(os.path.normpath(own / changed))


def broken(path: Path) -> list[str]:
    """Links of one document that lead nowhere: where it lies, or where `make course` lays its copy."""
    is_laid = path in lay_course.originals(ROOT).values()
    wrong = []
    for link in links(path):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists():
            wrong.append(f"{link}: no such file")
        elif name and is_laid and laid(path, name) != target:
            wrong.append(f"{link}: leads elsewhere in a learner's folder")
        elif anchor and target.suffix in (".md", ".ipynb") and anchor not in anchors(target):
            wrong.append(f"{link}: no such heading")
    return wrong


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    assert broken(path) == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "there.md").write_text("# A heading\n")
    page = tmp_path / "page.md"
    page.write_text('[a](there.md#a-heading) [b](gone.md) <img src="gone.png"> [c](there.md#nothing) `[d](gone)`\n')
    assert broken(page) == ["gone.md: no such file", "gone.png: no such file", "there.md#nothing: no such heading"]


def test_a_chapter_and_its_lab_reach_each_other_in_the_repository_and_in_work():
    chapter, lab = ROOT / "notebooks" / "03_ddp.ipynb", ROOT / "labs" / "03_ddp.ipynb"
    assert laid(chapter, "../labs/03_ddp.ipynb") == lab and laid(lab, "../notebooks/03_ddp.ipynb") == chapter
    assert laid(chapter, "01_collectives.ipynb") == ROOT / "notebooks" / "01_collectives.ipynb"
    assert laid(chapter, "../labs/gone.ipynb") is None and laid(chapter, "../solutions/03_ddp.ipynb") is None
