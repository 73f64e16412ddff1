"""README and the guides in docs/: README is short, commands exist with their options, counts are those of the files.

That their links lead somewhere: tests/test_links.py. Their pictures: tests/test_pictures.py.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
from pathlib import Path

import pytest
import yaml

from helpers.__main__ import main
from helpers.grading import labs
from helpers.interview import load_all

ROOT = Path(__file__).resolve().parent.parent
READMES = [ROOT / "README.md", ROOT / "README.zh.md"]
GUIDES = [*READMES, *sorted((ROOT / "docs").glob("*.md"))]
MAX_LINES, MAX_WORDS = 90, 1000
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())
VARIABLES = set(re.findall(r"^([A-Z]\w*) *[:?]?=", MAKEFILE, re.MULTILINE)) | {"LANGUAGE", "SYSTEM"}
OTHERS = ("git clone ", "torchrun ", "export ")  # lines that call neither make nor this course
NUMBERS = dict(zip("ten eleven twelve thirteen fourteen fifteen sixteen seventeen".split(), range(10, 18), strict=True))
COUNTED = {"chapters": r"chapters?", "labs": r"labs?", "cards": r"(?:interview )?cards?"}
COUNTED_IN_CHINESE = {"chapters": r"章", "labs": r"个实验", "cards": r"张卡片"}


def by_name(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.relative_to(ROOT).as_posix())


# -- commands --------------------------------------------------------------------------------------------------------
def commands(text: str) -> list[str]:
    """The lines of all blocks marked as bash, without comments."""
    lines = "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).splitlines()
    return [line for line in (re.sub(r"(^| )#.*", "", line).strip() for line in lines) if line]


@functools.cache
def help_of(command: str) -> str:
    """What `python -m helpers command --help` prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0, f"there is no command {command}"
    return said.getvalue()


def wrong_in_helpers(command: str, arguments: list[str]) -> list[str]:
    """Options that `python -m helpers command` does not know. Behind two dashes are those of a script."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    known = set(re.findall(r"--[a-z][\w-]*", help_of(command)))
    return [f"{command} has no {one}" for one in own if one.startswith("--") and one.partition("=")[0] not in known]


def wrong_in_make(words: list[str]) -> list[str]:
    words = words[2:] if words[:1] == ["-C"] else words
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    wrong = [f"make has no target {word}" for word in words if "=" not in word and word not in TARGETS]
    wrong += [f"make has no variable {name}" for name in settings if name not in VARIABLES]
    return wrong + (wrong_in_helpers("quiz", shlex.split(settings.get("ARGS", ""))) if "quiz" in words else [])


def wrong_in(line: str) -> list[str]:
    words = shlex.split(line)
    if words[0] == "make":
        return wrong_in_make(words[1:])
    if words[:3] == ["python", "-m", "helpers"]:
        return wrong_in_helpers(words[3], words[4:])
    return [] if line.startswith(OTHERS) else [f"neither make nor this course: {line}"]


@by_name(GUIDES)
def test_every_command_exists_with_its_options(path):
    found = commands(path.read_text(encoding="utf-8"))
    assert [wrong for line in found for wrong in wrong_in(line)] == []
    assert found or path not in READMES


@pytest.mark.parametrize(
    "line",
    ["make cours", "make course PROT=1", 'make quiz ARGS="--mok"', "python -m helpers plan --gpus_ 3", "pip install"],
)
def test_a_planted_command_is_found(line):
    assert len(wrong_in(line)) == 1


def test_a_script_has_options_of_its_own():
    assert wrong_in("python -m helpers rehearse train.py --nproc 2 -- --epochs 1") == []
    assert commands("```bash\n# nothing\nmake course  # starts\n```\n```\nnot a command\n```\n") == ["make course"]


# -- sizes and counts ------------------------------------------------------------------------------------------------
@by_name(READMES)
def test_the_readme_is_short(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES and len(text.split()) <= MAX_WORDS


def there_are() -> dict[str, int]:
    chapters = len(list((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")))
    return {"chapters": chapters, "labs": len(labs()), "cards": len(load_all())}


def wrong_counts(text: str) -> list[str]:
    """Numbers of chapters, labs or cards that are not those of the files. "Chapter 03" and 第 03 章 are no counts."""
    number, wrong = rf"\b(\d[\d,]*|{'|'.join(NUMBERS)})", []
    for what, there in there_are().items():
        patterns = rf"(?i){number} {COUNTED[what]}\b", rf"(?<!第 )(?<![\d-]){number} ?{COUNTED_IN_CHINESE[what]}"
        said = [found.lower() for pattern in patterns for found in re.findall(pattern, text)]
        counts = [NUMBERS[one] if one in NUMBERS else int(one.replace(",", "")) for one in said]
        wrong += [f"{count} {what}, but there are {there}" for count in counts if count != there]
    return wrong


def wrong_ranges(text: str) -> list[str]:
    """实验 01 到 12 in Chinese; tests/test_lists.py reads the English."""
    first_and_last = (labs()[0], labs()[-1])
    return [f"{a} 到 {b}" for a, b in re.findall(r"实验 (\d\d) 到 (\d\d)", text) if (a, b) != first_and_last]


@by_name(GUIDES)
def test_counts_are_those_of_the_files(path):
    text = path.read_text(encoding="utf-8")
    assert wrong_counts(text) == [] and wrong_ranges(text) == []


def test_a_planted_count_is_found():
    assert len(wrong_counts("fourteen chapters, 3 labs and 1,000 interview cards; 共 99 章，4 个实验")) == 5
    assert wrong_counts("chapter 03, 第 03 章, labs 01 to 12, two cards") == [] and wrong_ranges("实验 01 到 99")


@by_name([ROOT / "docs" / "learn.md", ROOT / "docs" / "train_and_plan.md", READMES[0]])
def test_numbers_in_the_text_of_a_picture_are_those_of_the_record(path):
    """Of explorers, and the seconds of torchrun's silence: what a reader without the picture is told."""
    record = (ROOT / "docs" / "pictures.yaml").read_text(encoding="utf-8")
    (alt,) = re.findall(r"!\[([^\]]*)\]\((?!https:)", path.read_text(encoding="utf-8"))  # badges are no pictures
    silence = str(yaml.safe_load(record)["torchrun"]["silent_seconds"])
    numbers = re.findall(r"\d[\d.]*(?= GB\b| seconds\b)", alt)
    assert set(numbers) <= {silence, *re.findall(r"\d+\.?\d*", record)}
