import threading

import pytest

from helpers.ranks.transport import MAX_CALL_BYTES, pack_call, pack_result, unpack


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
