"""A trace of two GPUs as Kineto writes it: its head, streams as threads, flows, NCCL's kernels with their fields.

Written by hand after Kineto's output_json.cpp and the samples of Holistic Trace Analysis; nothing of them is copied.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from helpers.commands.traces import explain, read
from helpers.commands.traces.files import Event
from helpers.commands.traces.messages import is_message, message_of

DEVICE = {"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85_000_000_000, "warpSize": 32, "numSms": 132}
NCCL = {
    "stream": 20,
    "device": 0,
    "correlation": 9,
    "Group size": 2,
    "Process Group Ranks": "[0, 1]",
    "dtype": "BFloat16",
}
ADDMM = "autograd::engine::evaluate_function: AddmmBackward0"


def event(name, cat, ts, dur, tid=1, pid=514, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name, ts, end, stream=7, external=0, **args):
    ids = {"External id": external} if external else {}
    return event(
        name, "kernel", ts, end - ts, stream, 0, **{"stream": stream, "device": 0, "correlation": ts}, **ids, **args
    )


def message(name, ts, end, op, elements, **more):
    explanation = NCCL | {"Collective name": op, "In msg nelems": elements, "Out msg nelems": elements} | more
    return event(
        f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)", "kernel", ts, end - ts, 20, 0, **explanation
    )


def events(rank):
    """All-gather, forward, backward beside a reduce-scatter, and what is handed to the next stage. Rank 1 is slower."""
    late = 50 * rank
    pair = {"Dst Rank": 1} if rank == 0 else {"Src Rank": 0}
    return [
        {"name": "process_labels", "ph": "M", "ts": 0, "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
        event("PyTorch Profiler (0)", "Trace", 0, 2000, "PyTorch Profiler", "Spans", **{"Op count": 9}),
        event("ProfilerStep#3", "user_annotation", 0, 1000),
        event("nccl:_all_gather_base", "user_annotation", 20, 15),
        event("record_param_comms", "cpu_op", 22, 10, **{"External id": 4} | NCCL | {"Seq": 7}),
        event("aten::addmm", "cpu_op", 50, 20, **{"External id": 5, "Input Dims": [[8], [4, 8], [8, 8]]}),
        event("cudaLaunchKernel", "cuda_runtime", 55, 5, cbid=211, correlation=1),
        {"ph": "s", "id": 1, "pid": 514, "tid": 1, "ts": 55, "cat": "ac2g", "name": "ac2g"},
        event(ADDMM, "cpu_op", 80, 30, 2, **{"External id": 6}),
        event("aten::mm", "cpu_op", 85, 20, 2, **{"External id": 7, "Input Dims": [[8, 4], [4, 8]]}),
        event("cudaDeviceSynchronize", "cuda_runtime", 120, 870, correlation=8),
        event("Stream Wait Event", "cuda_sync", 130, 200, 7, 0, stream=7, wait_on_stream=20),
        event("nccl:_all_gather_base", "gpu_user_annotation", 100 + late, 200 - late, 20, 0),
        event("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 100, 20, 7, 0, stream=7, bytes=4096),
        message("AllGather_RING_LL", 100 + late, 300, "_allgather_base", 10**6, Seq=7, **{"Process Group Name": "1"}),
        kernel("sm90_xmma_gemm_bf16", 300, 400, external=5),
        message("AllGather_RING_LL", 400, 450, "_allgather_base", 100, Seq=7, **{"Process Group Name": "2"}),
        kernel("sm90_xmma_gemm_bf16", 450, 600 + late, external=7),
        message(
            "ReduceScatter_Sum_bf16_RING_LL", 500, 700, "_reduce_scatter_base", 10**6, Seq=8,
            **{"Process Group Name": "1"},
        ),
        message("SendRecv", 800 - 2 * late, 850, "recv" if rank else "send", 512, Seq=1 + rank, **pair),
    ]  # fmt: skip


@pytest.fixture
def run(tmp_path):
    for rank in (0, 1):
        group = {
            "pg_name": "1",
            "pg_desc": "default_pg",
            "backend_config": "cuda:nccl",
            "pg_size": 2,
            "ranks": "[0, 1]",
        }
        explanation = {"backend": "nccl", "rank": rank, "world_size": 2, "pg_count": 1, "pg_config": [group]}
        head = {
            "schemaVersion": 1,
            "deviceProperties": [DEVICE],
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 10**18,
        }
        # Recorded on demand, Kineto writes who it was behind the events.
        whole = head | {"traceEvents": events(rank), "distributedInfo": explanation, "traceName": "/tmp/trace.json"}
        (tmp_path / f"gpu{rank}.json").write_text(json.dumps(whole))
    return read(tmp_path)


def test_a_gpus_step_is_told(run):
    explanation = explain(run)
    assert run.on_gpu and run.ranks == (0, 1) and run.notes == () and explanation.steps == (3,)
    assert explanation.by_rank[0]["compute"] == pytest.approx((20 + 100 + 150) * 1e-6)  # the copy, and two kernels
    assert explanation.by_rank[0]["waiting"] == pytest.approx(30e-6)  # of 50 the copy hides 20
    assert explanation.by_rank[1]["waiting"] == pytest.approx(100e-6)  # a receiver that came first
    names = {(one.name, one.calls) for one in explanation.operators if one.seconds}
    assert names >= {("aten::addmm", 1.0), ("aten::mm", 1.0)}
    kinds = {span.name: span.kind for span in run.timeline.spans if span.lane == "compute"}
    assert kinds["aten::addmm"] == "forward" and kinds["AddmmBackward0"] == "backward"


def test_messages_have_what_nccls_kernels_say(run):
    mine = [one for one in run.messages if one.rank == 0]
    assert [one.op for one in mine] == ["all_gather", "all_gather", "reduce_scatter", "send"]
    assert [one.num_bytes for one in mine] == [2 * 10**6, 200, 2 * 10**6, 1024]
    assert all(
        one.last_ready is not None for one in run.messages
    )  # both groups number theirs 7, and are explanation apart


def test_a_send_meets_its_receive_and_waits_for_it(run):
    """Kineto names the other side alone, and each rank numbers its own sends and receives."""
    sent, received = (one for one in run.messages if one.op in ("send", "recv"))
    assert sent.group == received.group == (0, 1)
    assert sent.late_rank == received.late_rank == 0 and received.last_ready == sent.ready > received.ready


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclSymkDevKernel_ReduceScatter_LL_sum_bf16", "reduce_scatter"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "all_gather"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "sendrecv"),
        ("void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", "generickernel"),
    ],
)
def test_kernels_of_every_nccl_are_messages(name, op):
    assert message_of(Event(name, 0, "X", "kernel", 1), 0, 0.0).op == op
    assert not any(map(is_message, ("nccl:all_reduce", "sm90_xmma_gemm_bf16", "Memcpy DtoD (Device -> Device)")))


@pytest.mark.parametrize(
    ("kind", "size"), [("c10::BFloat16", 2), ("long int", 8), ("Float8_e4m3fn", 1), ("unsigned char", 1), ("Float", 4)]
)
def test_bytes_follow_the_type(kind, size):
    explanation = json.dumps(message("AllReduce", 0, 1, "allreduce", 10, dtype=kind))
    assert message_of(msgspec.json.decode(explanation, type=Event), 0, 0.0).num_bytes == 10 * size
