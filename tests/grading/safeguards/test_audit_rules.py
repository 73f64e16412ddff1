"""Files outside the room of a check and the network are not touched."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from tests.grading.safeguards.conftest import SIZE, said
from tests.grading.test_run_on_ranks import right

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as what a cell defines: a rank does not import this file


def writes(path):
    with open(path, "w") as file:
        file.write("nothing")


DEEDS = {
    "open": writes,
    "remove": os.remove,
    "rename": lambda path: os.rename(path, path + "2"),
    "rmtree": lambda path: shutil.rmtree(os.path.dirname(path)),
    "quietly": lambda path: shutil.rmtree(os.path.dirname(path), ignore_errors=True),
    "move": lambda path: shutil.move(path, "here"),
    "copy": lambda path: shutil.copy("/etc/hosts", path),
    "truncate": lambda path: os.truncate(path, 0),
    "chmod": lambda path: os.chmod(path, 0),
    "save": lambda path: torch.save(1, path),
    "in a thread": lambda path: threading.Thread(target=os.remove, args=(path,)).start(),
    "beside it": lambda path: writes(path + "2"),
    "through a link": lambda path: (os.symlink(path, f"link{dist.get_rank()}"), writes(f"link{dist.get_rank()}")),
    "from a folder": lambda path: os.remove(os.path.basename(path), dir_fd=os.open(os.path.dirname(path), os.O_RDONLY)),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_nothing_outside_the_room_changes(deed, run, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "notes.txt").write_text("precious")
    path, do = str(precious / "notes.txt"), DEEDS[deed]

    def does_it(model):
        do(path)

    got = run(does_it)
    assert [one.read_text() for one in precious.iterdir()] == ["precious"]
    if deed == "in a thread":
        assert "Refused: changes or deletes notes.txt" in got.printed
    else:
        assert got.failure["kind"] == "refused"
        assert "changes or deletes " in said(got) and "test_audit_rules.py line" in said(got)
        assert "改动或删除了不属于它的" in got.failure["message"]["zh"]


def test_the_room_is_empty_and_may_be_used(run, own, tmp_path):
    (tmp_path / "data.txt").write_text("given")
    path = str(tmp_path / "data.txt")

    def works(model):
        assert open(path).read() == "given"
        assert not [name for name in os.listdir() if not name.startswith("mine")]
        writes(f"mine{dist.get_rank()}")
        os.mkdir(f"mine folder{dist.get_rank()}")
        torch.save(torch.ones(3), f"mine{dist.get_rank()}")
        shutil.rmtree(f"mine folder{dist.get_rank()}")
        open(os.devnull, "w").close()
        right(model)

    for _ in range(2):
        got = run(works)
        assert got.failure is None, got.failure["text"]
        assert not os.path.exists(os.path.join(own[:SIZE].folder, "room"))


@pytest.mark.parametrize("host", ["localhost", "203.0.113.1"])
def test_the_network_is_not_reached(host, run, next_works):
    def connects(model):
        if host == "localhost":
            socket.create_connection((host, 9), timeout=1)
        else:
            socket.socket().connect((host, 9))

    got = run(connects)
    assert got.failure["kind"] == "refused"
    assert ("looks for 'localhost' in the network" if host == "localhost" else f"connection to {host}") in said(got)
    next_works()


def test_the_ranks_own_connections_are(run, own):
    def makes_groups(model):
        group = dist.new_group([0, 1])
        for gradient in [parameter.grad for parameter in model.parameters() if parameter.grad is not None]:
            dist.all_reduce(gradient, group=group)
            gradient /= dist.get_world_size()

    before = run(right) and own[:SIZE].pids
    assert run(makes_groups).failure is None
    assert own[:SIZE].pids == before
