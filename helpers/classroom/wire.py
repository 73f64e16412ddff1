"""Messages between the judge and the sandbox: a length, then torch.save bytes of plain data. Neither side unpickles."""

from __future__ import annotations

import io
import math
import socket
import struct
import time
import zipfile
from typing import Any

import torch

MOST_BYTES = 64_000_000  # of one message; the largest honest answer of a lab is under 1 MB
MOST_ITEMS = 200_000
MOST_DEPTH = 20
_LENGTH = struct.Struct("!Q")


class Broken(Exception):
    """What came is no message: too large, torn, or made of something else than plain data."""


def send(sock: socket.socket, value: Any, seconds: float | None = None) -> None:
    """Raises OSError when the other end is gone, TimeoutError when it does not take the bytes in time."""
    with io.BytesIO() as file:
        torch.save(value, file)
        body = file.getvalue()
    sock.settimeout(seconds)
    sock.sendall(_LENGTH.pack(len(body)) + body)


def receive(sock: socket.socket, seconds: float | None = None) -> Any:
    """The next message. Raises EOFError at the end, TimeoutError when it is not there in time, Broken."""
    deadline = None if seconds is None else time.monotonic() + seconds
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size, deadline))
    if length > MOST_BYTES:
        raise Broken(f"an answer of {length:,} bytes, more than {MOST_BYTES:,}")
    return opened(_exactly(sock, length, deadline))


def opened(body: bytes) -> Any:
    """The plain data in torch.save's bytes. Raises Broken for anything else."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:  # torch would unpack what is packed tightly, at any size
            entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > MOST_BYTES or len(entries) > MOST_ITEMS:
            raise Broken("an answer that unpacks to more than may be sent")
        value = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except Broken:
        raise
    except Exception as error:  # torch and zipfile raise many kinds for bytes that somebody made up
        raise Broken(f"an answer that cannot be read ({type(error).__name__})") from None
    return _Cleaner().clean(value)


class _Cleaner:
    """Copies plain data, so that shared and nested pieces cannot grow when they are printed."""

    def __init__(self) -> None:
        self.items = 0

    def clean(self, value: Any, depth: int = 0) -> Any:
        self.items += 1
        if self.items > MOST_ITEMS or depth > MOST_DEPTH:
            raise Broken("an answer of too many pieces")
        kind = type(value)
        if value is None or kind in (bool, float) or (kind is int and abs(value) < 2**63):
            return value
        if kind is str and len(value) <= MOST_BYTES:
            return value
        if kind is torch.Tensor:
            return _whole(value)
        if kind in (list, tuple):
            return kind(self.clean(item, depth + 1) for item in value)
        if kind is dict:
            return {self.clean(key, MOST_DEPTH): self.clean(item, depth + 1) for key, item in value.items()}
        raise Broken(f"an answer with a {kind.__name__} in it")


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    if not plain or math.prod(tensor.shape) * tensor.element_size() > MOST_BYTES:
        raise Broken("an answer with a tensor that is no plain one")
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _exactly(sock: socket.socket, count: int, deadline: float | None) -> bytes:
    parts, left = [], count
    while left:
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError
        sock.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
        data = sock.recv(min(left, 1 << 20))
        if not data:
            raise EOFError
        parts.append(data)
        left -= len(data)
    return b"".join(parts)
