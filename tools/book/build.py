"""Builds the web edition in book/: static pages in English and in Chinese, which any web server can serve.

python tools/book/build.py [--serve]
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(Path(__file__).resolve().parent)]
from exercise_block import keys  # noqa: E402
from links import with_links  # noqa: E402
from notebook_page import OTHER, markdown, page_of  # noqa: E402
from pyodide import install_pyodide, write_package  # noqa: E402
from talk_block import quiz_page  # noqa: E402
from translate import read_table, table_of, translated  # noqa: E402

from helpers.draw import palette  # noqa: E402
from helpers.interview import answers  # noqa: E402
from helpers.learner.words import book  # noqa: E402

HERE = Path(__file__).resolve().parent
LANGUAGES = {"en": "en", "zh": "zh_CN"}  # ours -> Sphinx's name of the language
SCRIPTS = ("settings.js", "numbers.js", "page.js", "guesses.js", "python.js", "explorers.js", "exercises.js", "quiz.js")
QUIZ_WORDS = (
    "no_number", "decimal_comma", "bits", "unknown_unit", "other_kind", "no_unit_wanted", "nothing_to_compare",
    "other_sign", "percent_high", "percent_low", "times_high", "times_low",
)  # fmt: skip
TALK_WORDS = {  # of the talks' books, by name
    "sitting": ("comma", "rate", "mock.save", "clock.running", "clock.over", "clock.ended", "clock.up"),
    "dialogue": ("your_turn", "own", "own_was"),
    "round": ("view.mark", "view.why"),
    "quiz": ("colon",),
}
words = book("words", HERE)  # what the pages say, by name: words.yaml
REFERENCE = ("quiz", "strategies", "take_it_to_work", "sources")


def build(out: Path) -> None:
    """Build both languages: English at the top of `out`, Chinese in `out/zh`."""
    shutil.rmtree(out, ignore_errors=True)
    for language in LANGUAGES:
        source = write_sources(ROOT / "build" / "book" / language, language)
        target = out if language == "en" else out / language
        subprocess.run([sys.executable, "-m", "sphinx", "-q", "-b", "html", "-j", "auto", source, target], check=True)
    complete_pages(out)
    python = out / "_static" / "python"
    install_pyodide(python / "pyodide", ROOT / "build")
    write_package(python / "course.zip", ROOT)
    shutil.copy(HERE / "python_worker.mjs", python)


# What Furo and Sphinx leave to be said for a screen reader and for the keyboard: pattern -> replacement.
ACCESSIBLE = (
    (r'<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
    (r'<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="Site">'),
    (r'<aside class="toc-drawer', '<aside aria-label="Page" class="toc-drawer'),
    (r'<th class="head"><p></p></th>', '<td class="head"></td>'),
    (r"<iframe(?![^>]*\stitle=)", '<iframe title="A page to print"'),
)


def complete_pages(folder: Path) -> None:
    """Complete the HTML of every page in the folder, and translate what the theme writes."""
    for path in folder.rglob("*.html"):
        html = path.read_text(encoding="utf-8")
        for pattern, replacement in ACCESSIBLE:
            html = re.sub(pattern, replacement, html)
        if "zh" in path.relative_to(folder).parts:
            for word in words.section("theme").values():
                html = re.sub(rf'(>\s*|aria-label="){re.escape(word.en)}(?=\s*[<"])', rf"\g<1>{word.zh}", html)
        path.write_text(html, encoding="utf-8")


def write_sources(folder: Path, language: str) -> Path:
    """Write what Sphinx reads for one language. Returns the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    static = folder / "_static"
    shutil.copytree(HERE / "static", static)
    shutil.copytree(HERE / "templates", folder / "_templates")
    (static / "settings.js").write_text(settings(language), encoding="utf-8")
    # The Chinese pages show the same pictures, which are saved in English, from the folder of the English ones.
    pictures_at = "_static/pictures" if language == "en" else "../_static/pictures"
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        content = translated(path.read_bytes(), read_table(table_of(path, language)))
        page = page_of(json.loads(content), language, pictures_at)
        (folder / f"{path.stem}.md").write_text(page.text, encoding="utf-8")
        if language == "en":
            (static / "pictures").mkdir(exist_ok=True)
            for name, picture in page.pictures.items():
                (static / "pictures" / name).write_bytes(picture)
    (folder / "quiz.md").write_text(quiz_page(language), encoding="utf-8")
    _write_guides(folder, language)
    (folder / "conf.py").write_text(_configuration(language), encoding="utf-8")
    return folder


def _write_guides(folder: Path, language: str) -> None:
    """The first page, which is the README, and the guides of docs/."""
    guides = sorted((ROOT / "docs").glob("*.md"))
    guides = [
        path for path in guides if path.stem != "strategies" and path.name.endswith(".zh.md") == (language == "zh")
    ]
    (folder / "docs").mkdir()
    for path in guides:
        name = path.name.replace(".zh.md", ".md")
        (folder / "docs" / name).write_text(markdown(path.read_text(encoding="utf-8"), language), encoding="utf-8")
    for picture in [*(ROOT / "docs").glob("*.png"), *(ROOT / "docs").glob("*.gif")]:
        shutil.copy(picture, folder / "docs")
    name = "README.md" if language == "en" else "README.zh.md"
    readme = with_links((ROOT / name).read_text(encoding="utf-8"), name, None)  # badges come from other hosts
    chapters = sorted(path.stem for path in folder.glob("*.md") if path.stem not in REFERENCE)
    names = [f"docs/{path.name.partition('.')[0]}" for path in guides]
    captions = [words(name, language) for name in ("chapters", "reference", "guides")]
    trees = "".join(map(_toctree, captions, (chapters, REFERENCE, names)))
    title, _, rest = markdown(readme, language).partition("\n")
    in_page = ", ".join(sorted({key.partition(".")[0] for key in keys()}))  # chapters
    welcome = [words("welcome", language), "", words("exercises", language, chapters=in_page)]
    (folder / "index.md").write_text("\n".join([title, "", *welcome, rest, trees]), encoding="utf-8")


def _toctree(caption: str, names: Iterable[str]) -> str:
    """A part of the navigation."""
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```", ""])


def settings(language: str) -> str:
    """settings.js: the texts and units that the scripts of the pages need."""
    quiz = {name: answers.words[name] for name in QUIZ_WORDS}
    steps = {f"step.{name}": palette.words[f"step.{name}"] for name in ("previous", "next", "the_previous", "the_next")}
    talk = {f"{name}.{key}": book(name)[key] for name, keys in TALK_WORDS.items() for key in keys}
    texts = {name: one.in_(language) for name, one in {**book("guess"), **quiz, **steps, **talk, **words}.items()}
    units = {"kinds": answers.KINDS, "factors": answers.FACTORS, "spoken": answers.SPOKEN, "scales": answers.SCALES}
    folder = "python/" if language == "en" else "../../_static/python/"  # both languages share it
    constants = {"LANGUAGE": language, "UNITS": units, "WORDS": texts, "PYTHON_FOLDER": folder}
    return "".join(f"const {name} = {json.dumps(value, ensure_ascii=False)};\n" for name, value in constants.items())


def _configuration(language: str) -> str:
    """Sphinx's conf.py."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    version = words("version", language, version=metadata.version("rank-by-rank"), commit=commit.strip())
    return f"""
project = html_title = "Rank by Rank"
language = {LANGUAGES[language]!r}
extensions = ["myst_parser"]
templates_path = ["_templates"]
html_theme = "furo"
html_theme_options = {{"top_of_page_buttons": []}}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_js_files = [(name, {{"defer": "defer"}}) for name in {SCRIPTS}]
html_show_copyright = html_copy_source = html_show_sourcelink = html_use_index = html_show_sphinx = False
import jieba; jieba.setLogLevel("ERROR")
html_context = {{"version": {version!r}, "other_language": {list(OTHER[language])!r}}}
html_sidebars = {{"**": ["sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html",
    "sidebar/navigation.html", "version.html", "sidebar/scroll-end.html"]}}
myst_heading_anchors = 3
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
"""


def serve(folder: Path, port: int = 8000) -> None:
    """Serve the site on this machine until Ctrl-C."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/")
        server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "book")
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    build(arguments.out)
    if arguments.serve:
        serve(arguments.out)
