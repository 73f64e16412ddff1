"""What the judge reads from a sandbox is plain data of bounded size, or refused with a sentence."""

from __future__ import annotations

import io
import socket
import struct
import zipfile

import pytest
import torch

from helpers.classroom import messages


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_plain_data_comes_as_it_went(pair):
    value = {"a": [1, 2.5, "x", None, True], "t": torch.arange(6.0, dtype=torch.float64).view(2, 3), "pair": (1, 2)}
    messages.send(pair[0], value)
    got = messages.receive(pair[1], 10)
    assert torch.equal(got.pop("t"), value.pop("t")) and got == value


def packed(value) -> bytes:
    with io.BytesIO() as file:
        torch.save(value, file)
        return file.getvalue()


class Evil:
    def __reduce__(self):
        return print, ("unpickled",)


@pytest.mark.parametrize(
    "value", [Evil(), {"x": Evil()}, {1, 2}, 2**70, torch.zeros(3).to_sparse(), torch.zeros(1).expand(10**9)]
)
def test_anything_else_is_refused_and_never_run(value, capsys):
    with pytest.raises(messages.InvalidMessage):
        messages.decode_message(packed(value))
    assert "unpickled" not in capsys.readouterr().out


def test_a_list_that_grows_when_it_is_printed_is_refused():
    value = ["x"]
    for _ in range(40):
        value = [value, value]
    with pytest.raises(messages.InvalidMessage, match="too many pieces"):
        messages.decode_message(packed(value))


def test_an_answer_packed_tightly_is_refused_before_it_is_unpacked():
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", bytes(messages.MAX_BYTES + 1))
        body = file.getvalue()
    assert len(body) < 100_000
    with pytest.raises(messages.InvalidMessage, match="unpacks to more"):
        messages.decode_message(body)


def test_an_answer_that_says_it_is_huge_is_refused_before_it_is_read(pair):
    pair[0].sendall(struct.pack("!Q", 10**15))
    with pytest.raises(messages.InvalidMessage, match="bytes"):
        messages.receive(pair[1], 10)


def test_an_end_and_a_silence_are_told_apart(pair):
    with pytest.raises(TimeoutError):
        messages.receive(pair[1], 0.05)
    pair[0].close()
    with pytest.raises(EOFError):
        messages.receive(pair[1], 10)
