"""`python -m helpers quiz` as it is typed: piped, through a terminal, in both languages, ended in every way."""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from helpers.interview import load_bank, quiz_command
from helpers.learner.words.wrapping import width
from tests.interview.quiz_cards import line, lines

COMMAND = [sys.executable, "-W", "error", "-m", "helpers", "quiz"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def progress_file(home):
    return home / ".rank-by-rank" / "progress.jsonl"


@pytest.fixture
def quiz(home, monkeypatch, capsys):
    """Run it with input piped in: (exit code, output, errors)."""

    def run(arguments, typed):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        return quiz_command.main(arguments.split()), *capsys.readouterr()

    return run


def test_folded_cards_are_unfolded_rated_and_noted(home):
    """As a program of its own, under `-W error`; most others call what it calls."""
    command = [*COMMAND, *"--topic ddp --form folded --count 2".split()]
    said = subprocess.run(command, input="\ngood\n\nm\n1\n", capture_output=True, encoding="utf-8", timeout=60)
    out = said.stdout
    assert (said.returncode, said.stderr) == (0, "")
    assert "1 of 2 · ddp · junior · new" in out and "Usual mistake: " in out and "They may ask next: " in out
    assert "Noted as good. It comes back in 10 min." in out
    assert "Asked 2, right 1." in out and "Weakest topic: ddp." in out
    assert [one["rating"] for one in lines(progress_file(home))] == ["good", "again"]


def test_where_the_longer_answer_stands_already_more_are_the_follow_ups(quiz):
    _, out, _ = quiz("--topic start_here --form number --count 2", "3\nm\n\n3\n")
    assert out.count("Enter for the next card (m: what they may ask next):") == 2 and "the longer answer" not in out
    first = " ".join(load_bank("00_start_here")[0].longer.en.split()[:4])
    assert out.count(first) == 1 and out.count("They may ask next: ") == 1


def test_letters_and_numbers_with_help_and_a_question_that_stays(quiz):
    code, out, err = quiz("--form choice --count 1", "?\nz\nm\na\n")
    assert (code, err) == (0, "")
    assert "Folded card: answer aloud" in out and "'z' is not one of the options" in out
    assert "comes once you have answered" in out
    assert "Asked 1, right " in out
    code, out, _ = quiz("--form number --count 1", "much\n3\n\n")
    assert code == 0 and "'much' cannot be read as a number" in out and "Asked 1, right " in out


def test_the_last_lines_say_how_many_were_hard_and_count_what_was_chosen(quiz):
    _, out, _ = quiz("--topic ddp --form folded --count 2", "\n2\n\n3\n")
    assert "Asked 2, right 2, of which hard 1." in out and "of the cards you chose from: 2." in out
    _, out, _ = quiz("--form folded --count 1 --lang zh", "q\n")
    assert "（所有主题）" in out


def test_a_chinese_system_is_told_of_lang_once_and_only_where_nothing_was_chosen(quiz, monkeypatch):
    for name in ("LC_ALL", "LC_MESSAGES", "RANKS_LANGUAGE"):
        monkeypatch.delenv(name, raising=False)
    hint = "加上 --lang zh 用中文提问"
    for locale, arguments, is_told in (("zh_CN.UTF-8", "", 1), ("de_DE.UTF-8", "", 0), ("zh_CN.UTF-8", "--lang en", 0)):
        monkeypatch.setenv("LANG", locale)
        assert quiz(f"--form folded {arguments}", "q\n")[1].count(hint) == is_told
    monkeypatch.setenv("RANKS_LANGUAGE", "en")
    assert hint not in quiz("--form folded", "q\n")[1]


@pytest.mark.parametrize("typed", ["", "q\n", "\nq\n", "s\ns\nq\n"])
def test_q_and_the_end_of_the_input_end_it_with_a_summary(quiz, home, typed):
    code, out, err = quiz("--form folded", typed)
    assert (code, err) == (0, "")
    assert "No question was answered." in out and "Due within a day" in out
    assert not progress_file(home).exists()


def test_bytes_that_are_no_text_and_a_terminal_that_knows_only_ascii_are_no_reason_to_stop(home):
    environment = dict(os.environ, PYTHONIOENCODING="ascii", LC_ALL="C")
    command = [*COMMAND, "--lang", "zh", "--form", "folded"]
    said = subprocess.run(command, input=b"\n\xff\xfe\n3\n", capture_output=True, timeout=60, env=environment)
    assert (said.returncode, said.stderr) == (0, b"")
    assert b"cannot show Chinese (its encoding is ascii)" in said.stdout
    assert len(lines(progress_file(home))) == 1


def test_every_word_of_the_interface_is_chinese(quiz):
    _, out, _ = quiz("--lang zh --form folded --count 1", "?\n\nm\nx\n4\n")
    frame = [text for text in out.splitlines() if re.search("Enter|Usual|answer|Noted|Asked|junior|Shown|Due", text)]
    assert frame == []
    words = "这一轮共 1 题|第 1 / 1 题|先说出你的答案|常见错误：|出处：|可能的追问：|很轻松|共答 1 题，答对 1 题。"
    assert [one for one in words.split("|") if one not in out] == []
    assert "'x' 不是评分" in out and "天后再问。" in out


@pytest.mark.parametrize("language", ["en", "zh"])
def test_lines_fit_a_narrow_terminal(quiz, language, monkeypatch):
    monkeypatch.setenv("COLUMNS", "46")
    _, out, _ = quiz(f"--lang {language} --form folded --count 3", "?\n\nm\n3\n\n2\n\n1\n")
    too_wide = [text for text in out.splitlines() if width(text) > 46]
    assert [text for text in too_wide if ".ipynb" not in text and "http" not in text] == []
    assert "\x1b" not in out


def test_what_is_due_is_asked_first_and_listed(quiz, home):
    progress_file(home).parent.mkdir()
    yesterday = datetime.now(UTC) - timedelta(days=1)
    progress_file(home).write_text(line("tp-column-then-row", "again", yesterday))
    code, table, _ = quiz("--list", "")
    assert code == 0
    assert re.search(r"^tensor_parallel +\d+ +\d+ +1$", table, re.MULTILINE)
    assert re.search(r"^topic +cards +new +due$", table, re.MULTILINE)
    _, out, _ = quiz("--count 1", "q\n")
    assert "tensor_parallel · " in out and "· new" not in out


def test_a_damaged_progress_file_is_told_and_the_quiz_goes_on(quiz, home):
    progress_file(home).parent.mkdir()
    progress_file(home).write_bytes(b"\xff\xff torn")
    code, out, _ = quiz("--form folded --count 1", "\n3\n")
    assert code == 0 and "Asked 1, right 1." in out
    assert "are copied to" in out and "unreadable-1" in out.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--topic", "dpd"], 2, "There is no topic 'dpd': the topics are start_here, collectives, ddp"),
        (["--topic", "dpd", "--lang", "zh"], 2, "没有主题 'dpd'：现有主题为 start_here"),
        (["--count", "0"], 2, "count is '0': give how many cards"),
        (["--count=many", "--lang=zh"], 2, "题数 'many' 不对"),
        (["--anki", "deck.zip"], 2, "deck.zip is not a name for an Anki deck"),
        (["--drill", "99.x"], 2, "There is no drill '99.x'"),
        (["--mock", "--list"], 2, "--list, --mock cannot be asked for together"),
        (["--drill", "03.average", "--round"], 2, "--drill, --round cannot be asked for together"),
        (["--mock", "--level", "junior,senior"], 2, "A mock interview has one level"),
    ],
)
def test_what_is_not_there_is_a_sentence(home, capsys, arguments, code, sentence):
    assert quiz_command.main(arguments) == code
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("language", "sentence"), [("en", "unrecognized arguments: --nope"), ("zh", "看不懂参数：--nope")]
)
def test_an_unknown_option_is_a_sentence(home, capsys, language, sentence):
    with pytest.raises(SystemExit) as stopped:
        quiz_command.main(["--nope", "--lang", language])
    assert stopped.value.code == 2 and sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("language", "words"), [("en", ("usage: ", "instead of a quiz")), ("zh", ("用法：", "不做练习"))]
)
def test_help_is_in_the_language(home, capsys, language, words):
    with pytest.raises(SystemExit) as stopped:
        quiz_command.main(["--help", "--lang", language])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert all(word in said for word in words)


def test_the_deck_is_written(home, capsys, monkeypatch):
    monkeypatch.chdir(home)
    assert quiz_command.main(["--anki", "ddp.apkg", "--topic", "ddp"]) == 0
    assert re.search(r"Notes written to ddp.apkg: \d+\.", capsys.readouterr().out)
    assert (home / "ddp.apkg").stat().st_size > 1000


# Makes its input the terminal of its session, so that Ctrl-C reaches it, and becomes the quiz.
BECOME = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class Typist:
    """The quiz in a real pseudo-terminal."""

    def __init__(self, arguments):
        self.terminal, inside = pty.openpty()
        command = [sys.executable, "-c", BECOME, *COMMAND, *arguments]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), inside)
        environment = dict(os.environ, TERM="xterm-256color")
        self.child = subprocess.Popen(command, **streams, env=environment, start_new_session=True)
        os.close(inside)
        self.seen = ""

    def until(self, words, limit=30.0):
        """Read until these words come, which must be within the limit (seconds)."""
        deadline = time.monotonic() + limit
        while words not in self.seen:
            assert time.monotonic() < deadline, f"{words!r} did not come in {self.seen!r}"
            if select.select([self.terminal], [], [], 0.5)[0]:
                self.seen += os.read(self.terminal, 65536).decode(errors="replace")
        before, _, self.seen = self.seen.partition(words)
        return before

    def type(self, keys):
        os.write(self.terminal, keys.encode())

    def interrupt(self, words, presses=10):
        """Ctrl-C until these words come: one between a prompt and the wait for a key is heeded with the next key."""
        for press in range(1, presses + 1):
            self.type("\x03")
            try:
                return self.until(words, limit=3.0)
            except AssertionError:
                if press == presses:
                    raise

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self.child.kill()
        self.child.wait()
        os.close(self.terminal)

    def ends(self):
        """The exit code, once it has ended by itself."""
        return self.child.wait(30)


def test_a_terminal_sees_colour_and_ctrl_c_ends_it_with_a_summary(home):
    with Typist(["--topic", "ddp", "--form", "folded"]) as typist:
        assert "\x1b[1m" in typist.until("press Enter to see the model answer:")
        typist.type("\n")
        typist.until("4 easy (m: the longer answer):")
        typist.type("3\n")
        typist.until("Noted as good.")
        typist.until("press Enter to see the model answer:")
        typist.interrupt("Asked 1, right 1.")
        typist.until("Due within a day")
        assert typist.ends() == 0
    assert len(lines(progress_file(home))) == 1


def test_ctrl_d_ends_it_too_and_no_color_is_heeded(home, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with Typist(["--lang", "zh", "--form", "folded"]) as typist:
        assert "\x1b" not in typist.until("按回车看参考答案：")
        typist.type("\x04")
        typist.until("这一轮没有作答。")
        typist.until("张。")
        assert typist.ends() == 0


def test_a_reader_that_goes_away_is_no_error(home):
    command = f"{' '.join(COMMAND)} --list | head -1"
    said = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert said.stderr == "" and len(said.stdout.splitlines()) == 1


def test_it_can_be_interrupted_before_it_asks(home, monkeypatch, capsys):
    def interrupted(*_):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(quiz_command, "card_ids", interrupted)
    assert quiz_command.main(["--list"]) == 130
