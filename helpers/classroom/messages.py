"""Sends plain data between the grader and the sandbox over a socket; neither side unpickles what the other one sends.

A message is its length in 8 bytes, then what torch.save writes for numbers, texts, tensors, lists and dictionaries. It
is read with weights_only=True, which builds no other objects, and checked piece by piece. The sandbox may send
anything, because a learner's code runs there.
"""

from __future__ import annotations

import io
import math
import socket
import struct
import time
import zipfile
from typing import Any

import torch

MAX_BYTES = 64_000_000  # bytes of one message; the largest honest answer of a lab is under 1 MB
MAX_ITEMS = 200_000  # numbers, texts, tensors and containers in one message
MAX_DEPTH = 20  # how deep containers may be inside each other
_LENGTH = struct.Struct("!Q")


class InvalidMessage(Exception):
    """The other side sent no valid message: it is too large, damaged, or not plain data. The text says what it sent."""


def send(sock: socket.socket, value: Any, seconds: float | None = None) -> None:
    """Send one value. Raises OSError if the other end is gone, TimeoutError if it does not take the bytes in time."""
    with io.BytesIO() as file:
        torch.save(value, file)
        body = file.getvalue()
    sock.settimeout(seconds)
    sock.sendall(_LENGTH.pack(len(body)) + body)


def receive(sock: socket.socket, seconds: float | None = None) -> Any:
    """The next message. seconds: how long to wait, None for ever.

    Raises EOFError if the other end is gone, TimeoutError if no message comes in time, and InvalidMessage.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    (length,) = _LENGTH.unpack(_read_exactly(sock, _LENGTH.size, deadline))
    if length > MAX_BYTES:
        raise InvalidMessage(f"an answer of {length:,} bytes, more than {MAX_BYTES:,}")
    return decode_message(_read_exactly(sock, length, deadline))


def decode_message(body: bytes) -> Any:
    """The plain data in torch.save's bytes. Raises InvalidMessage for anything else."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:  # torch.load would unpack a small archive to any size
            entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > MAX_BYTES or len(entries) > MAX_ITEMS:
            raise InvalidMessage("an answer that unpacks to more than may be sent")
        value = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except InvalidMessage:
        raise
    except Exception as error:  # for made-up bytes, torch and zipfile raise errors of many kinds
        raise InvalidMessage(f"an answer that cannot be read ({type(error).__name__})") from None
    return _Cleaner().clean(value)


class _Cleaner:
    """Copies plain data and counts its items, so that a small message with shared parts cannot become a huge copy."""

    def __init__(self) -> None:
        self.items = 0

    def clean(self, value: Any, depth: int = 0) -> Any:
        """A copy of the value. Raises InvalidMessage for anything that is not plain data."""
        self.items += 1
        if self.items > MAX_ITEMS or depth > MAX_DEPTH:
            raise InvalidMessage("an answer of too many pieces")
        kind = type(value)  # the exact type: a subclass could have methods of the learner
        if value is None or kind in (bool, float) or (kind is int and abs(value) < 2**63):  # what int64 holds
            return value
        if kind is str and len(value) <= MAX_BYTES:
            return value
        if kind is torch.Tensor:
            return _plain_copy(value)
        if kind in (list, tuple):
            return kind(self.clean(item, depth + 1) for item in value)
        if kind is dict:
            # A key counts as MAX_DEPTH deep, so that a container in it is refused.
            return {self.clean(key, MAX_DEPTH): self.clean(item, depth + 1) for key, item in value.items()}
        raise InvalidMessage(f"an answer with a {kind.__name__} in it")


def _plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    if not is_plain or math.prod(tensor.shape) * tensor.element_size() > MAX_BYTES:
        raise InvalidMessage("an answer with a tensor that is no plain one")
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _read_exactly(sock: socket.socket, count: int, deadline: float | None) -> bytes:
    parts, missing = [], count
    while missing:
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError
        # A timeout of 0 would mean that the socket does not wait at all.
        sock.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
        data = sock.recv(min(missing, 1 << 20))
        if not data:
            raise EOFError
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)
