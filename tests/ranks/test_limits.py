import os
import types

import pytest

from helpers.ranks import limits


@pytest.mark.parametrize("number", [0, -1])
def test_no_ranks(number):
    with pytest.raises(ValueError, match=f"at least 1 rank, but got {number}: try"):
        limits.check_num_ranks(number)


@pytest.mark.parametrize("number", [2.0, "4", True, None])
def test_not_a_number_of_ranks(number):
    with pytest.raises(ValueError, match="must be a whole number"):
        limits.check_num_ranks(number)


def test_more_ranks_than_memory(monkeypatch):
    monkeypatch.setattr(limits, "available_memory", lambda: 1_000_000_000)
    limits.check_num_ranks(12)
    with pytest.raises(
        ValueError, match=r"100 ranks need about 8\.0 GB, but 1\.0 GB of memory are free: use Ranks\(12\)"
    ):
        limits.check_num_ranks(100)


def test_a_containers_limit_counts_and_not_the_hosts(monkeypatch):
    files = {"/sys/fs/cgroup/memory.max": 3_000, "/sys/fs/cgroup/memory.current": 1_000}
    monkeypatch.setattr(limits, "_read", files.get)
    assert limits.available_memory() == 2_000


def test_a_small_shared_memory_is_left_alone(monkeypatch):
    monkeypatch.setattr(limits.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=10_000_000))
    assert limits.shared_folder() is None


def test_no_shared_memory_at_all(monkeypatch):
    monkeypatch.setattr(limits, "SHARED", "/nowhere")
    assert limits.shared_folder() is None


def test_nccl_without_a_gpu(monkeypatch):
    monkeypatch.setattr(limits, "num_gpus", lambda: 0)
    with pytest.raises(ValueError, match="needs an NVIDIA GPU, and torch sees none here"):
        limits.choose_device("nccl", 4)


def test_nccl_with_too_few_gpus(monkeypatch):
    monkeypatch.setattr(limits, "num_gpus", lambda: 2)
    with pytest.raises(ValueError, match=r"one GPU per rank: 4 ranks, but 2 GPUs\. Use Ranks\(2\)"):
        limits.choose_device("nccl", 4)


def test_an_unknown_device():
    with pytest.raises(ValueError, match="device must be"):
        limits.choose_device("tpu", 4)


def test_each_rank_gets_its_own_gpu_when_there_are_enough(monkeypatch):
    monkeypatch.setattr(limits, "num_gpus", lambda: 8)
    assert limits.choose_device("auto", 4) == ("cuda", "nccl", [0, 1, 2, 3])


def test_ranks_share_a_gpu_through_gloo_when_asked(monkeypatch):
    monkeypatch.setattr(limits, "num_gpus", lambda: 1)
    assert limits.choose_device("auto", 2) == ("cpu", "wire", [0, 0])
    assert limits.choose_device("cuda", 2) == ("cuda", "gloo", [0, 0])


def test_shared_memory_gives_a_new_folder_that_names_its_kernel():
    folder = limits.shared_folder()
    if folder is None:
        pytest.skip("this machine has no room in shared memory")
    try:
        assert os.listdir(folder) == [] and os.path.basename(folder).startswith(f"ranks-{os.getpid()}-")
    finally:
        os.rmdir(folder)
