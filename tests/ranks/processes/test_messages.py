"""Calls travel to the ranks, and what a rank prints and says arrives whole."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace

import cloudpickle
import pytest

from helpers.grading.safeguards.limits import processor_limit
from helpers.ranks import RankError
from helpers.ranks.processes import messages, worker
from helpers.ranks.processes.messages import MAX_CALL_BYTES, Capture, Outbox, pack_call, pack_result, unpack

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_what_is_said_in_the_middle_of_a_message_goes_next():
    """A collection of garbage calls a destructor that prints, while the same thread sends."""
    kernel, rank = Pipe()
    outbox = Outbox(rank)

    class Talks:
        def __reduce__(self):
            outbox.send(("out", "I am destroyed"))
            return str, ("value",)

    outbox.send(("done", Talks()))
    assert [kernel.recv(), kernel.recv()] == [("done", "value"), ("out", "I am destroyed")]
    kernel.close()
    rank.close()


def prints_with_a_signal_between_the_halves(number: int) -> None:
    one_half, sent = Connection._send, []

    def and_signal(connection, *given):
        one_half(connection, *given)
        sent.append(number)
        if len(sent) == 1:
            signal.raise_signal(number)

    Connection._send = and_signal
    try:
        with processor_limit(60) if number == signal.SIGPROF else contextlib.nullcontext():
            print("a" * 100_000)  # more than one write
    finally:
        Connection._send = one_half


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGPROF, "TooLong")])
def test_a_signal_within_a_message_waits_for_its_end(ranks, number, raised):
    with pytest.raises(RankError, match=raised):
        ranks.run(prints_with_a_signal_between_the_halves, number)
    assert ranks.run(len, "abcd") == [4] * 4


def cannot_say_where_it_is() -> None:
    worker.ACTIVE.where = None
    while True:
        time.sleep(0.01)


def test_a_rank_that_cannot_answer_is_gone_and_not_deaf(ranks):
    with pytest.raises(RankError) as caught:
        ranks.run(cannot_say_where_it_is)
    assert caught.value.kind == "died"
    assert ranks.run(len, "abcd") == [4] * 4


def keeps_pythons_lock() -> None:
    re.match("(a+)+$", "a" * 64 + "b")


def test_where_the_threads_of_a_rank_without_an_answer_were_is_kept_for_us(ranks, monkeypatch, caplog):
    monkeypatch.setattr(ranks, "timeout", 4)
    with pytest.raises(RankError, match="does not answer"):
        ranks.run(keeps_pythons_lock)
    assert re.search(r"Thread 0x\w+ .*\n(  File .*\n)*  File .*worker.py.* in control", caplog.text), caplog.text


def hears_nothing_from_now_on() -> None:
    me = worker.ACTIVE
    me.tasks = SimpleNamespace(get=me.tasks.get, put=lambda message: threading.Event().wait())


def test_a_rank_that_has_not_taken_up_its_task_is_said_to_be_deaf(ranks, monkeypatch, caplog):
    caplog.set_level("CRITICAL", logger="helpers.ranks.board.report")
    ranks.run(hears_nothing_from_now_on)
    monkeypatch.setattr(ranks, "timeout", 4)
    with pytest.raises(RankError, match="rank 3 did not receive the task") as caught:
        ranks.run(len, "abcd")
    assert caught.value.kind == "deaf" and ranks.run(len, "abcd") == [4] * 4


@pytest.mark.parametrize("halves", ["_send", "_recv"])
@pytest.mark.parametrize(("presses", "says"), [(1, "variables are kept"), (2, "variables are lost")])
def test_ranks_answer_after_an_interrupt_within_a_message(ranks, monkeypatch, halves, presses, says):
    """Between the two halves that a pipe's message has: its length and what it holds."""
    one_half, pressed = getattr(Connection, halves), []

    def and_interrupt(connection, *given):
        value = one_half(connection, *given)
        while len(pressed) < presses:
            pressed.append(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return value

    ranks.run(int)
    monkeypatch.setattr(Connection, halves, and_interrupt)
    with pytest.raises(RankError, match="interrupted") as caught:
        ranks.run(len, b"a" * 100_000)  # more than one write
    assert says in str(caught.value)
    assert len(pressed) == presses and ranks.run(len, "abcd") == [4] * 4


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
    assert sum(map(len, sent)) < messages.MAX_CHARACTERS + 200
    assert "more characters that a notebook could not hold" in sent[-1]
    assert "800,000" in sent[-1]


def test_a_line_without_an_end_is_cut_too():
    sent = []
    stream = Capture(sent.append)
    for _ in range(5):
        stream.write("x" * messages.MAX_CHARACTERS)
    assert 0 < sum(map(len, sent)) <= messages.MAX_CHARACTERS
    stream.finish()
    assert "800,000 more characters" in sent[-1]


def test_the_next_run_may_print_again():
    sent = []
    stream = Capture(sent.append)
    print("x" * (messages.MAX_CHARACTERS + 10), file=stream)
    stream.finish()
    sent.clear()
    print("again", file=stream)
    stream.finish()
    assert sent == ["again\n"]


def test_a_closure_travels():
    factor = 3
    fn, args, kwargs = unpack(pack_call(lambda x, *, y: factor * x + y, (2,), {"y": 1}, num_ranks=2))
    assert fn(*args, **kwargs) == 7


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def train():
        return lock

    with pytest.raises(
        ValueError, match=r"train cannot be sent to the ranks because of `lock` \(lock\): make it inside"
    ):
        pack_call(train, (), {}, num_ranks=2)


def test_what_is_too_heavy_is_named_with_its_size():
    corpus = bytearray(MAX_CALL_BYTES + 1)

    def train():
        return corpus

    with pytest.raises(
        ValueError, match=r"train would carry 0\.26 GB to each of 4 ranks .* `corpus` alone is 0\.26 GB"
    ):
        pack_call(train, (), {}, num_ranks=4)


def test_a_call_instead_of_a_function_is_explained():
    with pytest.raises(ValueError, match=r"run needs a function, but got int"):
        pack_call(3, (), {}, num_ranks=2)


def test_a_result_that_cannot_travel_is_explained():
    with pytest.raises(TypeError, match="the result, a lock, cannot be sent back .* return plain data"):
        pack_result(threading.Lock())


def test_a_variable_with_the_name_of_a_torch_module_does_no_harm():
    source = "import torch.distributed as dist\nconfig = 3\ndef train():\n    return dist.__name__, config"
    names = {"__name__": "__main__"}
    exec(source, names)
    fn, _, _ = unpack(pack_call(names["train"], (), {}, num_ranks=2))
    assert fn() == ("torch.distributed", 3)
