"""What the kernel knows of its ranks' processes."""

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
