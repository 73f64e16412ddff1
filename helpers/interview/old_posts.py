"""What old posts write, and what one writes now. A test runs every right-hand side (`old_posts.yaml` says where)."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.interview.bank_file import check_fields, read_entries, read_list, read_text
from helpers.interview.render import inline
from helpers.learner.words import Words

FILE = Path(__file__).parent / "old_posts.yaml"
WHERE = ("process", "ranks", "torchrun")
FIELDS = {"required": ("id", "old", "today", "why", "chapter", "runs", "proof")}
FIELDS["known"] = (*FIELDS["required"], "setup", "launch", "prints", "gone", "warns", "needs", "since")
CODE = (  # JupyterLab would break a line within a word
    "margin:0;padding:.4em .6em;overflow-x:auto;white-space:pre;font-size:11.5px;line-height:1.5;"
    "background:rgba(128,128,128,.12)"
)


@dataclass(frozen=True, kw_only=True)
class OldPost:
    """One row. old, today: code. runs: where the test runs `setup`, `today` and `proof`, one after the other.

    launch, prints: torchrun's arguments, and lines that the script must print. gone: a module that can no longer be
    imported. warns: old code that torch warns about. needs: a package without which the row cannot run. since: the
    first torch with today's form.
    """

    id: str
    old: str
    today: str
    why: Words
    chapter: str
    runs: str
    proof: str
    setup: str = ""
    launch: tuple[str, ...] = ()
    prints: tuple[str, ...] = ()
    gone: str = ""
    warns: str = ""
    needs: str = ""
    since: str = ""

    @property
    def code(self) -> str:
        """What the test runs."""
        return "\n".join([self.setup, self.today, self.proof])


class OldPosts(tuple[OldPost, ...]):
    """All rows, which a notebook shows as a table."""

    def __repr__(self) -> str:
        rows = [f"- {post.old.splitlines()[0]} → {post.today.splitlines()[0]}" for post in self]
        return "\n".join([f"Old posts, and today: {len(self)}", *rows])

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="text-align:left;width:50%">{word}</th>' for word in ("the post", "today"))
        rows = "".join(map(_row, self))
        return f'<table style="table-layout:fixed;width:100%;max-width:80em"><tr>{head}</tr>{rows}</table>'


def old_posts(file: Path = FILE) -> OldPosts:
    """The rows of `old_posts.yaml`. Raises ValueError with file, line and field where it is not as it should be."""
    return OldPosts(read_entries(Path(file), "posts", _read, lambda post: [post.id]))


def _read(fields: Any, where: str) -> OldPost:
    check_fields(fields, FIELDS, where, "post")
    where = f"{where} ({fields['id']})"
    if fields["runs"] not in WHERE:
        raise ValueError(f"{where}: `runs` is {fields['runs']!r}; it must be one of {', '.join(WHERE)}")
    lists = {name: tuple(map(str, read_list(fields, name, where))) for name in ("launch", "prints")}
    texts = {name: str(value).strip("\n") for name, value in fields.items() if name not in (*lists, "why")}
    return OldPost(**texts, **lists, why=read_text(fields["why"], where, "why"))


def _row(post: OldPost) -> str:
    codes = "".join(
        f'<td style="text-align:left;vertical-align:top"><pre style="{CODE}">{html.escape(code)}</pre></td>'
        for code in (post.old, post.today)
    )
    why = f'{inline(post.why.en)}<br><span lang="zh">{inline(post.why.zh)}</span>'
    return f'<tr>{codes}</tr><tr><td colspan="2" style="text-align:left;padding-bottom:1em">{why}</td></tr>'
