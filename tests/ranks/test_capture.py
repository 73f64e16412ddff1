from helpers.ranks import pipe
from helpers.ranks.pipe import Capture


def test_whole_lines_go_at_once_and_the_rest_at_the_end():
    sent = []
    stream = Capture(sent.append)
    print("one\ntwo", end="", file=stream)
    assert sent == ["one\n"]
    stream.finish()
    assert sent == ["one\n", "two"]


def test_a_flood_is_cut_and_counted():
    sent = []
    stream = Capture(sent.append)
    for _ in range(1000):
        print("x" * 999, file=stream)
    stream.finish()
    assert sum(map(len, sent)) < pipe.MAX_CHARACTERS + 200
    assert "more characters that a notebook could not hold" in sent[-1]
    assert "800,000" in sent[-1]


def test_a_line_without_an_end_is_cut_too():
    sent = []
    stream = Capture(sent.append)
    for _ in range(5):
        stream.write("x" * pipe.MAX_CHARACTERS)
    assert 0 < sum(map(len, sent)) <= pipe.MAX_CHARACTERS
    stream.finish()
    assert "800,000 more characters" in sent[-1]


def test_the_next_run_may_print_again():
    sent = []
    stream = Capture(sent.append)
    print("x" * (pipe.MAX_CHARACTERS + 10), file=stream)
    stream.finish()
    sent.clear()
    print("again", file=stream)
    stream.finish()
    assert sent == ["again\n"]
