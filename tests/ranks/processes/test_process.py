"""What the kernel knows of its ranks' processes, and which zygotes it keeps."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from helpers.ranks.processes import process
from helpers.ranks.processes.process import ZygoteClient


@pytest.fixture
def zygote():
    """A client, and the other end of its socket, at which the test plays the zygote."""
    ends = []
    client = ZygoteClient(lambda theirs, log: ends.append(theirs.dup()))
    yield client, ends[0]
    client.socket.close()
    client.log.close()
    ends[0].close()


def test_a_process_whose_number_was_another_ones_has_not_ended(zygote):
    """Linux gives 32,768 numbers in turn, threads included: a long session comes round."""
    client, theirs = zygote
    theirs.sendall(b'{"exited": 7, "status": 3}\n{"started": 7}\n')
    client._read(1.0)
    assert client.exit_status(7, limit=0.01) is None


def test_a_rank_whose_start_was_interrupted_is_ended_and_no_other_request_gets_it(zygote):
    client, theirs = zygote
    theirs.sendall(b'{"ready": 1}\n')
    main = threading.main_thread().ident
    presses = threading.Thread(target=lambda: (theirs.recv(100), signal.pthread_kill(main, signal.SIGINT)))
    presses.start()
    with pytest.raises(KeyboardInterrupt):
        client.fork({"rank": 0})
    presses.join()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as late:
        theirs.sendall(f'{{"started": {late.pid}}}\n{{"started": {os.getpid()}}}\n'.encode())
        pid, conn = client.fork({"rank": 1})
        conn.close()
        assert pid == os.getpid() and late.wait(10) == -signal.SIGKILL


def test_a_zygote_that_ended_before_it_read_a_request_is_a_sentence_with_its_log(zygote):
    client, theirs = zygote
    client.log.write(b"no module named torch")
    client.log.flush()
    client.remove_later("/a folder")
    theirs.close()
    with pytest.raises(RuntimeError, match=r"the process that starts the ranks ended\.\nno module named torch"):
        client.wait_until_ready()


def test_a_zygote_that_still_imports_is_not_waited_for():
    asleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
    client = ZygoteClient(lambda theirs, log: subprocess.Popen(asleep))
    client.close()
    assert client.process.returncode == -signal.SIGKILL


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
