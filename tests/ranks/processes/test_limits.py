import os
import types

import pytest

from helpers.ranks import live
from helpers.ranks.processes import limits


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


GB, NONE = 10**9, 9223372036854771712
V1 = {
    "limit": "memory.limit_in_bytes",
    "used": "memory.usage_in_bytes",
    "files": "total_active_file 0\ntotal_inactive_file",
}
V2 = {"limit": "memory.max", "used": "memory.current", "files": "active_file 0\ninactive_file"}
# The line of /proc/self/cgroup, the version, {folder of a cgroup: limit, in use, files among it}, what is expected.
CONTAINERS = {
    "a container": ("0::/", V2, {".": (GB, GB // 2, 0)}, (GB, GB // 2)),
    "files in memory": ("0::/", V2, {".": (GB, GB // 2, GB // 4)}, (GB, GB // 4)),
    "the tighter of two": ("0::/a/b", V2, {"a": (2 * GB, 2 * GB, 0), "a/b": (GB, 0, 0)}, (2 * GB, 2 * GB)),
    "no limit": ("0::/", V2, {".": ("max", GB, 0)}, None),
    "version 1": ("4:memory:/m", V1, {"memory/m": (GB, GB // 2, GB // 4), "memory": (NONE, GB, 0)}, (GB, GB // 4)),
    "version 1 in a container": ("4:memory:/docker/0123", V1, {"memory": (GB, GB // 2, 0)}, (GB, GB // 2)),
    "no limit in version 1": ("4:memory:/", V1, {"memory": (NONE, GB, 0)}, None),
    "another controller": ("5:cpu:/", V1, {"cpu": (GB, 0, 0)}, None),
}


def container(root, line, version, cgroups):
    """A folder in place of "/", in which the limits of this process are these."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"{line}\n")
    for name, (limit, used, files) in cgroups.items():
        folder = root / "sys/fs/cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / version["limit"]).write_text(f"{limit}\n")
        (folder / version["used"]).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 1\n{version['files']} {files}\n")
    return root


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_containers_limit_counts_and_not_the_hosts(name, tmp_path, monkeypatch):
    monkeypatch.setattr(
        limits.psutil, "virtual_memory", lambda: types.SimpleNamespace(total=64 * GB, available=60 * GB)
    )
    *tree, expected = CONTAINERS[name]
    root = container(tmp_path, *tree)
    assert limits.memory_limit(root) == expected
    assert limits.available_memory(root) == (60 * GB if expected is None else expected[0] - expected[1])


@pytest.mark.parametrize("limit, warns", [(None, False), ((4 * GB, 3 * GB), False), ((GB, 2 * GB // 5), True)])
def test_a_small_container_is_named_before_it_ends_the_kernel(limit, warns, monkeypatch):
    monkeypatch.setattr(limits, "memory_limit", lambda: limit)
    warning = limits.memory_warning()
    assert ("may use 1.0 GB of memory, of which 0.6 GB are left" in warning) == bool(warning) == warns


def test_ranks_say_it_when_they_start(monkeypatch, capsys):
    monkeypatch.setattr(limits, "memory_limit", lambda: (GB, 0))
    texts = {"_headline": lambda: "4 ranks on CPU", "_footprint": lambda: "56 MB each"}
    live.Ranks._start(types.SimpleNamespace(_pool=types.SimpleNamespace(start=lambda: None), quiet=False, **texts))
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("4 ranks on CPU, ready in") and second.startswith("This container may use 1.0 GB")


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
