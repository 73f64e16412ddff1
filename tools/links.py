"""Writes the addresses of the course's repository on GitHub into README and two notebooks, or removes them again.

    python tools/links.py --repo owner/name [--branch main] [--book https://…]
    python tools/links.py                                                        removes them

With them, README and README.zh.md show badges and the ways to Colab, Binder and the web edition, and the first code
cell of chapters 00 and 08 installs the course where it is missing, as on Colab. The repository is stored without
addresses, because a copy of it may be at another place.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = ("00_start_here", "08_zero")  # can be opened on Colab: nothing but the package is needed
CELL = "install"  # the id and the tag of their cell that installs the course
START, END = "<!-- links: written by `make links REPO=owner/name` -->", "<!-- end of links -->"
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+")
_BRANCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_BOOK = re.compile(r"https?://[^\s()<>\"]+")

TEXTS = {  # by README: the links below the badges
    "README.md": (
        "**Without an installation** you can [read the course in a browser]({book}), open [00 Start here]({colab_00}) "
        "or [08 ZeRO]({colab_08}) on Google Colab, or start [all notebooks on Binder]({binder})."
    ),
    "README.zh.md": (
        "**无需安装**：可以[在浏览器里阅读课程]({book}zh/)，在 Google Colab 上打开[第 00 章]({colab_00})或"
        "[第 08 章]({colab_08})（英文），或在 Binder 上启动[全部 notebook]({binder})（英文）。"
    ),
}
BADGES = (
    "[![CI]({repository}/actions/workflows/ci.yml/badge.svg)]({repository}/actions/workflows/ci.yml)\n"
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab_00})\n"
    "[![Binder](https://mybinder.org/badge_logo.svg)]({binder})\n\n"
)
INSTALL = """\
# On Google Colab this cell installs the course. Where the course is installed already, it does nothing.
from importlib.util import find_spec

if not find_spec("helpers"):
    %pip install --quiet "rank-by-rank @ git+{repository}@{branch}\""""
CANNOT_INSTALL = """\
# Where the course is installed, this cell does nothing.
from importlib.util import find_spec

if not find_spec("helpers"):
    raise ImportError("The course is not installed here: open this notebook with `make course`, as README says.")"""


@dataclass(frozen=True, kw_only=True)
class Links:
    """Where the course is. repo: owner/name on GitHub; book: the address of the web edition, "" for GitHub Pages.

    Raises ValueError for what cannot be a repository, a branch or an address.
    """

    repo: str
    branch: str = "main"
    book: str = ""

    def __post_init__(self) -> None:
        if not _REPO.fullmatch(self.repo):
            raise ValueError(
                f"REPO={self.repo} is no repository on GitHub: write owner/name, as in REPO=ada/rank-by-rank."
            )
        if not _BRANCH.fullmatch(self.branch):
            raise ValueError(f"BRANCH={self.branch} is no name of a branch: write one such as BRANCH=main.")
        if self.book and not _BOOK.fullmatch(self.book):
            raise ValueError(
                f"BOOK={self.book} is no address: write one such as BOOK=https://ada.github.io/rank-by-rank/."
            )

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses by the names that the texts above use."""
        owner, name = self.repo.split("/")
        colab = f"https://colab.research.google.com/github/{self.repo}/blob/{self.branch}/notebooks/"
        first = f"notebooks/{CHAPTERS[0]}.ipynb"
        return {
            "repository": f"https://github.com/{self.repo}",
            "branch": self.branch,
            "book": f"{(self.book or f'https://{owner}.github.io/{name}').rstrip('/')}/",
            "colab_00": f"{colab}{CHAPTERS[0]}.ipynb",
            "colab_08": f"{colab}{CHAPTERS[1]}.ipynb",
            "binder": f"https://mybinder.org/v2/gh/{self.repo}/{self.branch}?urlpath=lab/tree/{first}",
        }


def with_links(readme: str, name: str, links: Links | None) -> str:
    """The text of the README with this name, with the links between its two comments, or with nothing there.

    Raises ValueError if the text does not have each comment once.
    """
    if readme.count(START) != 1 or readme.count(END) != 1:
        raise ValueError(f"{name} must have the lines {START} and {END} once each.")
    before, rest = readme.split(START)
    after = rest.split(END)[1]
    written = (BADGES + TEXTS[name]).format(**links.addresses) + "\n" if links else ""
    return f"{before}{START}\n{written}{END}{after}"


def install_cell(links: Links | None) -> str:
    """The source of the cell that installs the course, or without links says that it must be installed."""
    return INSTALL.format(**links.addresses) if links else CANNOT_INSTALL


def write_links(root: Path, links: Links | None) -> list[str]:
    """Write the links into the files below `root`, or remove them; returns the paths of the files that changed."""
    new = {}
    for name in TEXTS:
        new[root / name] = with_links((root / name).read_text(encoding="utf-8"), name, links)
    for name in CHAPTERS:
        path = root / "notebooks" / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        (cell,) = (cell for cell in notebook.cells if cell.id == CELL)
        cell.source = install_cell(links)
        new[path] = nbformat.writes(notebook) + "\n"
    changed = [path for path, text in new.items() if path.read_text(encoding="utf-8") != text]
    for path in changed:
        path.write_text(new[path], encoding="utf-8")
    return [path.relative_to(root).as_posix() for path in changed]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repo", default="", help="owner/name on GitHub; without it the addresses are removed")
    parser.add_argument(
        "--branch", default="main", help="from which Colab and Binder take the notebooks; default: main"
    )
    parser.add_argument("--book", default="", help="the web edition; default: https://OWNER.github.io/NAME/")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder of the repository")
    options = parser.parse_args(arguments)
    try:
        links = Links(repo=options.repo, branch=options.branch, book=options.book) if options.repo else None
        changed = write_links(options.root, links)
    except ValueError as error:
        print(f"Nothing was changed. {error}", file=sys.stderr)
        return 1
    place = f"links to {options.repo}" if links else "no links"
    print(f"README and the first cells of chapters 00 and 08 have {place}; changed: {', '.join(changed) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
