"""What the kernel knows of its ranks' processes, and which zygotes it keeps."""

import os

from helpers.ranks import process
from helpers.ranks.process import ZygoteClient


def test_a_process_whose_number_was_another_ones_has_not_ended():
    """Linux gives 32,768 numbers in turn, threads included: a long session comes round."""
    ends = []
    client = ZygoteClient(lambda theirs, log: ends.append(theirs.dup()))
    try:
        ends[0].sendall(b'{"exited": 7, "status": 3}\n{"started": 7}\n')
        client._read(1.0)
        client.rank_pids.add(7)
        assert client.exit_status(7, limit=0.01) is None
    finally:
        client.socket.close()
        client.log.close()
        ends[0].close()


class FakeClient:
    """A client of a zygote that is never started."""

    def __init__(self, start):
        self.owner, self.is_closed, self.hash_seed = os.getpid(), False, start.keywords["hash_seed"]

    def is_alive(self):
        return not self.is_closed

    def close(self):
        self.is_closed = True


def test_a_zygote_with_another_hash_seed_takes_the_place_of_the_second_one_alone(monkeypatch):
    monkeypatch.setattr(process, "_clients", {})
    monkeypatch.setattr(process, "ZygoteClient", FakeClient)
    first, second = process.zygote(), process.zygote(hash_seed=7)
    assert process.zygote(hash_seed=7) is second and (first.hash_seed, second.hash_seed) == (process.HASH_SEED, 7)
    third = process.zygote(hash_seed=8)
    assert (first.is_closed, second.is_closed, third.is_closed) == (False, True, False)
    assert process.zygote() is first and process.zygote(hash_seed=8) is third
