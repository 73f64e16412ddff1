"""The same calls on GPUs: one rank a GPU through NCCL, or several ranks that share one through gloo."""

import pytest
import torch
import torch.distributed as dist

from helpers.chapters.ddp import AveragedGradients
from helpers.commands import doctor
from helpers.observe.training import Training, beside_one_process
from helpers.parallel.ddp import DistributedDataParallel, NaiveDDP
from helpers.workloads import MLP, synthetic
from tests.gpu.device import KIND, NUM_GPUS, here, module

NUM_ROWS = 24
SHARED = pytest.param("on_shared_gpu", marks=pytest.mark.cuda("ranks with cards share none"))


def sum_of_ranks():
    number = torch.full((5,), float(dist.get_rank()), device=here())  # (5,)
    dist.all_reduce(number)
    return dist.get_backend(), number.device.type, number.tolist()


@pytest.mark.cuda("cards talk over the wire")
def test_one_rank_a_gpu_talks_through_nccl(on_nccl):
    total = float(sum(range(NUM_GPUS)))
    assert on_nccl.run(sum_of_ranks) == [("nccl", KIND, [total] * 5)] * NUM_GPUS


@pytest.mark.cuda("every rank's card is number 0")
def test_each_rank_has_a_gpu_of_its_own(on_nccl):
    assert on_nccl.run(module.current_device) == list(range(NUM_GPUS))


@pytest.mark.cuda("ranks with cards share none")
def test_ranks_that_share_a_gpu_talk_through_gloo(on_shared_gpu):
    size = NUM_GPUS + 1
    results = on_shared_gpu.run(sum_of_ranks)
    assert [(device, sums) for _, device, sums in results] == [(KIND, [float(sum(range(size)))] * 5)] * size
    assert all(backend != "nccl" for backend, _, _ in results)


def broadcast_from_last():
    value = torch.full((5,), float(dist.get_rank()), device=here())  # (5,)
    dist.broadcast(value, src=dist.get_world_size() - 1)
    return value.tolist()


@pytest.mark.cuda("ranks with cards share none")
def test_ranks_that_share_a_gpu_can_broadcast(on_shared_gpu):
    assert on_shared_gpu.run(broadcast_from_last) == [[float(NUM_GPUS)] * 5] * (NUM_GPUS + 1)


TRAINING = Training(
    model=lambda: MLP([12, 16, 4]).to(here(), torch.float64),
    batch=lambda _: [rows.to(here()) for rows in synthetic(NUM_ROWS, 12, 4, dtype=torch.float64)],
    loss=torch.nn.functional.cross_entropy,
    optimizer=torch.optim.SGD,
    options=dict(lr=0.1),
    steps=3,
)


@pytest.mark.parametrize("wrap", [NaiveDDP, DistributedDataParallel])
@pytest.mark.parametrize("kind", ["on_nccl", SHARED])
def test_ddp_equals_one_process(kind, wrap, request):
    pool = request.getfixturevalue(kind)
    if NUM_ROWS % len(pool):
        pytest.skip(f"{NUM_ROWS} rows do not divide into {len(pool)} equal shares")
    alone = pool.run(TRAINING.run)[0]
    beside_one_process(pool, TRAINING.under(AveragedGradients, wrap=wrap), alone)


def fail_on_the_last_rank():
    if dist.get_rank() == dist.get_world_size() - 1:
        raise ValueError("on purpose")
    return sum_of_ranks()


@pytest.mark.cuda("ranks with cards share none")
def test_after_a_failure_the_next_run_works(on_shared_gpu):
    from helpers.ranks import RankError

    with pytest.raises(RankError) as caught:
        on_shared_gpu.run(fail_on_the_last_rank)
    assert (caught.value.kind, caught.value.rank) == ("exception", NUM_GPUS)
    assert len(on_shared_gpu.run(sum_of_ranks)) == NUM_GPUS + 1


@pytest.mark.cuda("the doctor asks for NVIDIA's GPUs")
def test_the_doctor_names_the_gpus_and_the_backend():
    names = doctor.gpu_names()
    assert len(names) >= NUM_GPUS > 0
    assert names[0] in doctor.check_devices(names, None).value
    assert "NCCL" in doctor.check_backend(NUM_GPUS).value
