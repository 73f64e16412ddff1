"""The zoo: each patient is really broken, its cure cures it, and nothing in its script tells why."""

from __future__ import annotations

import ast
import io
import re
import tokenize

import pytest

from helpers.commands.broken_jobs import FOLDER, broken_job, broken_jobs, edited
from helpers.observe.torchrun import torchrun
from helpers.ranks import Ranks
from tests.commands.broken_jobs.symptoms import HAS_SYMPTOM, found, run_script, timeless, watched
from tests.test_prose import findings

ALL = {one.name: one for one in broken_jobs()}
# A loader's worker needs a process that may have one, which a rank is not.
PLAYED = [name for name, one in ALL.items() if one.ends != "error"]
TELLING = re.compile(
    r"\b(bugs?|wrong|fix\w*|should|missing|forg\w+|slow\w*|leaks?|hangs?|deadlock\w*|broken|sick|causes?|never|stale|broken"
    r"|unsynced|drift\w*|summed|todo|careful|note that|mistake\w*)\b",
    re.IGNORECASE,
)


def told(script: str) -> list[str]:
    """Words of its comments, texts and names that tell what is wrong."""
    tokens = tokenize.generate_tokens(io.StringIO(script).readline)
    kinds = (tokenize.COMMENT, tokenize.STRING, tokenize.NAME)
    read = [one.string.replace("_", " ") for one in tokens if one.type in kinds]
    return [one[0] for text in read for one in TELLING.finditer(text)]


@pytest.mark.parametrize("name", ALL)
def test_a_patient_is_a_short_script_of_plain_torch_that_does_not_tell(name):
    one = ALL[name]
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else part.name).partition(".")[0]
        for node in ast.walk(ast.parse(one.script)) if isinstance(node, ast.Import | ast.ImportFrom)
        for part in node.names
    }  # fmt: skip
    assert imported <= {"torch", "psutil", "tempfile", "time"} and one.script.count("\n") <= 60
    assert told(one.script) == [] and told(one.script + "# this is wrong\n") == ["wrong"]
    assert f"--nproc-per-node={one.ranks} {one.path.name}" in one.script


@pytest.mark.parametrize("name", ALL)
def test_its_line_is_one_line_and_its_cure_fits(name):
    one = ALL[name]
    lines = {one.line_number(), *map(one.line_number, one.other_lines)}
    assert len(lines) == 1 + len(one.other_lines) and one.rank in (None, *range(one.ranks))
    assert one.ends in ("well", "silent", "error")
    assert one.fixed != one.script
    for script in (one.fixed, watched(one, one.script), watched(one, one.fixed)):
        compile(script, name, "exec")
    with pytest.raises(ValueError, match="fits in 0 places"):
        edited(one.script, [("what is not there", "")])


@pytest.mark.parametrize("name", ALL)
def test_its_texts_are_plain(name):
    one = ALL[name]
    texts = (one.title, one.symptom, one.hint, one.cause, one.remedy, one.tool)
    assert [finding for text in texts for finding in findings(text.en)] == []
    assert not any(re.search(r"[,;:?!] ?[\u4e00-\u9fff]", text.zh) for text in texts)


def test_a_name_or_a_line_that_is_not_there_is_a_sentence():
    assert broken_job("patient_03") is ALL["patient_03"]
    with pytest.raises(ValueError, match="there is no broken job 'x': give one of patient_01, patient_02"):
        broken_job("x")
    with pytest.raises(ValueError, match="'import' is in 5 lines of patient_01.py; it must be in 1"):
        ALL["patient_01"].line_number("import")


def masked(line: str) -> str:
    """Without what differs between machines: memory, and the number of a process."""
    return re.sub(r"\d+(?= MB)|(?<=pid )\d+|(?<=s: )\[.*", "…", line)


def is_in(log: str, said: list[str]) -> bool:
    """Whether each line of the log was said. The numbers may differ by rounding, which losses that explode enlarge."""
    lines = [masked(line) for line in said]
    return all(any(is_same_line(masked(line), one) for one in lines) for line in log.splitlines())


def is_same_line(line: str, other: str) -> bool:
    """Whether the words are the same, and the numbers with decimals nearly so."""
    numbers, others = (list(map(float, re.findall(r"\d+\.\d+", text))) for text in (line, other))
    words, other_words = (re.sub(r"\d+\.\d+", "", text) for text in (line, other))
    return words == other_words and others == pytest.approx(numbers, rel=1e-4)


@pytest.fixture(scope="module")
def pool():
    """Ranks of their own: jobs leave seeds and groups behind, and two of them stand still."""
    with Ranks(4, device="cpu", timeout=150, quiet=True) as ranks:
        yield ranks


def assert_ill_and_cured(name, pool, device):
    one = ALL[name]
    alone = run_script(pool[:1], one.fixed) if name == "patient_01" else []
    scripts = [watched(one, script) if one.ends == "well" else script for script in (one.script, one.fixed)]
    scripts = map(timeless, scripts) if device == "cpu" else scripts
    broken, fixed = (run_script(pool[: one.ranks], script, device) for script in scripts)
    assert HAS_SYMPTOM[name](broken, alone) and not HAS_SYMPTOM[name](fixed, alone)
    assert is_in(one.log, broken) or one.ends == "silent"
    assert found(broken) - {"late"} == {one.watchdog} - {"", "late", "stacks"} and found(fixed) <= {"late"}


@pytest.mark.parametrize("name", PLAYED)
def test_it_is_ill_its_cure_cures_and_the_watchdog_finds_what_it_says(name, pool):
    """Which rank is late is left to torchrun: here, beside other tests, any may be."""
    assert_ill_and_cured(name, pool, "cpu")


@pytest.mark.parametrize("name", ["patient_03", "patient_12"])
def test_it_is_ill_on_practice_cards_too_and_its_cure_cures(name, cards):
    """One stands still, one sends too much. Most others draw from a CPU's generator, which a card refuses."""
    assert_ill_and_cured(name, cards, "card")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ALL)
def test_under_torchrun_too_and_with_the_watchdog_in_it(name, tmp_path, monkeypatch):
    one = ALL[name]
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parents[2]))
    patience = 4 if one.watchdog == "stacks" else 200  # a busy machine may take long over a step, or over its end
    settings = f'every=5, patience={patience}, stacks=open(f"{tmp_path}/{{rank}}", "w")'
    broken = torchrun(watched(one, one.script, settings), ranks=one.ranks, silence=12 if one.ends == "silent" else 60)
    fixed = torchrun(one.fixed, ranks=one.ranks, silence=60)
    said, alone = [*broken.lines, *broken.errors], []
    if name == "patient_01":
        alone = list(torchrun(one.fixed, ranks=1, silence=60).lines)
    assert HAS_SYMPTOM[name](said, alone) and not HAS_SYMPTOM[name](list(fixed.lines), alone) and fixed.returncode == 0
    assert {"well": 0, "silent": None, "error": 1}[one.ends] == broken.returncode and is_in(one.log, said)
    stacks = ["main" in path.read_text() for path in sorted(tmp_path.iterdir())]
    by_load = {"late"} - {one.watchdog}  # beside other work any rank may be late
    assert found(said) - by_load == {one.watchdog} - {"", "stacks"} and (one.watchdog == "stacks") == all(stacks)
