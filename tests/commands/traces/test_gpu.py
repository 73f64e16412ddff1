"""A trace of two GPUs as Kineto writes it: its head, streams as threads, flows, NCCL's kernels with their fields.

Written by hand after Kineto's output_json.cpp and the samples of Holistic Trace Analysis; nothing of them is copied.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from helpers.commands.traces import explain, read, report_lines
from helpers.commands.traces.events import Event
from helpers.commands.traces.lanes import is_loading
from helpers.commands.traces.messages import is_message, message_of

DEVICE = {"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85_000_000_000, "warpSize": 32, "numSms": 132}
NCCL = {"stream": 20, "device": 0, "correlation": 9, "dtype": "BFloat16"}
NCCL |= {"Group size": 2, "Process Group Ranks": "[0, 1]"}
ADDMM = "autograd::engine::evaluate_function: AddmmBackward0"


def event(name, cat, ts, dur, tid=1, pid=514, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name, ts, end, stream=7, external=0, **args):
    ids = {"External id": external} if external else {}
    ids |= {"stream": stream, "device": 0, "correlation": ts}
    return event(name, "kernel", ts, end - ts, stream, 0, **ids, **args)


def message(name, ts, end, op, elements, **more):
    explanation = NCCL | {"Collective name": op, "In msg nelems": elements, "Out msg nelems": elements} | more
    name = f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)"
    return event(name, "kernel", ts, end - ts, 20, 0, **explanation)


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
        message("ReduceScatter_Sum_bf16_RING_LL", 500, 700, "_reduce_scatter_base", 10**6, Seq=8,
                **{"Process Group Name": "1"}),
        message("SendRecv", 800 - 2 * late, 850, "recv" if rank else "send", 512, Seq=1 + rank, **pair),
    ]  # fmt: skip


@pytest.fixture
def run(tmp_path):
    for rank in (0, 1):
        group = {"pg_name": "1", "pg_desc": "default_pg", "backend_config": "cuda:nccl"}
        group |= {"pg_size": 2, "ranks": "[0, 1]"}
        explanation = {"backend": "nccl", "rank": rank, "world_size": 2, "pg_count": 1, "pg_config": [group]}
        head = {"schemaVersion": 1, "deviceProperties": [DEVICE]}
        head |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": 10**18}
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
    assert all(one.last_ready is not None for one in run.messages)  # both groups number theirs 7, and are told apart


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
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", "all_reduce"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("two_shot_all_reduce_kernel", "all_reduce"),
    ],
)
def test_kernels_of_every_nccl_and_those_that_reduce_without_it_are_messages(name, op):
    assert message_of(Event(name, 0, "X", "kernel", 1), 0, 0.0).op == op


@pytest.mark.parametrize(
    "name",
    ["nccl:all_reduce", "sm90_xmma_gemm_bf16", "Memcpy DtoD (Device -> Device)", "symm_mem::multimem_all_reduce_",
     "void at::native::reduce_kernel<512, 1>"],
)  # fmt: skip
def test_other_kernels_are_no_messages(name):
    assert not is_message(name)


@pytest.mark.parametrize(
    ("kind", "size"), [("c10::BFloat16", 2), ("long int", 8), ("Float8_e4m3fn", 1), ("unsigned char", 1), ("Float", 4)]
)
def test_bytes_follow_the_type(kind, size):
    explanation = json.dumps(message("AllReduce", 0, 1, "allreduce", 10, dtype=kind))
    assert message_of(msgspec.json.decode(explanation, type=Event), 0, 0.0).num_bytes == 10 * size


# -- labels ----------------------------------------------------------------------------------------------------------
LOADING = """
enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__|enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__
dataloader|DataLoader|parallel_dataloader|[pl][profile][_TrainingEpochLoop].train_dataloader_next|data loading
## data_load ##|load_data|load_batch|## load_batch ##|load inputs|get_batch|get_next_batch|## next_batch ##|read_samples
next(data_iter)|next(iter(loader))|fetch_data|fetching next batch|prefetch|prefetch_batch|data_prefetcher|data|loader
h2d copy|H2DCopy|HtoD batch|batch.to(device)|to_device|[pl][profile][Strategy]DDPStrategy.batch_to_device
## copy_batch_to_gpu 3 ##|## wait_for_batch ##|data_wait|wait_for_data|prepare_inputs|input_pipeline|collate|加载数据
loadbatch|get_micro_batch|load_microbatch|batch_generator|StreamingDataset.__getitem__|get_batch_on_this_tp_rank
"""
NOT_LOADING = """
data_parallel_step|data_parallel|sharded_data_parallel|dp_reduce|get_data_parallel_group|DistributedDataParallel.forward
FullyShardedDataParallel._pre_forward_prefetch|FSDP::backward_prefetch for layers.1|## sharded_module_prefetch ##
## sparse_data_dist ##|## start_sparse_data_dist 2 ##|## wait_sparse_data_dist ##|## all2all_data:lengths ##
## all2all_tw_data:init ##|## input_dist ##|metadata|update_data_ptr|database|loss.data|gradient_data|get_batch_size
load_checkpoint|load_state_dict|load_balancing_loss|load_model|reload_weights|offload|prefetch_weights|weights h2d
copy_params_to_gpu|broadcast_batch|forward_microbatch 3|workload|payload|download|batch_norm
microbatch|iteration|train_step|ProfilerStep#3|nccl:all_reduce
"""


def labels(text):
    return text.strip().replace("\n", "|").split("|")


@pytest.mark.parametrize(
    ("label", "loads"), [(one, True) for one in labels(LOADING)] + [(one, False) for one in labels(NOT_LOADING)]
)
def test_a_label_is_of_loading_only_if_it_says_so(label, loads):
    assert is_loading(label) == loads


def explained(folder, *rows, name="rank0.json"):
    folder.mkdir(exist_ok=True)
    step = event("ProfilerStep#3", "user_annotation", 0, 1000)
    (folder / name).write_text(json.dumps({"schemaVersion": 1, "traceEvents": [step, *rows]}))
    return explain(read(folder))


@pytest.mark.parametrize(
    ("label", "operator", "data"),
    [
        ("load_batch", "aten::stack", 500e-6),  # what a collate function does
        ("load_batch", "aten::linear", 0),  # the model works in it, so the label means something else
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "aten::linear", 500e-6),
        ("data_parallel_step", "aten::stack", 0),
    ],
)
def test_a_label_around_an_operator_of_the_model_is_no_loading(tmp_path, label, operator, data):
    rows = event(label, "user_annotation", 100, 500), event(operator, "cpu_op", 200, 300)
    parts = explained(tmp_path, *rows).parts
    assert parts["data"] == pytest.approx(data) and parts["compute"] == pytest.approx(0 if data else 300e-6)


# -- what is not known is said ---------------------------------------------------------------------------------------
def test_events_of_unknown_kinds_are_counted_and_named(tmp_path):
    rows = [event("dma_request", "npu_task", at, 10) for at in (100, 200)] + [event("conv", "npu_op", 300, 10)]
    rows += [event("launchFunction", "npu_runtime", 90, 5), event("nccl:all_reduce", "gpu_user_annotation", 90, 5)]
    (note,) = (str(note) for note in explained(tmp_path, *rows, event("aten::add", "cpu_op", 50, 10)).notes)
    assert "npu_task (2 events) and npu_op (1 event)" in note


def test_a_trace_with_launches_and_without_kernels_says_what_compute_is(tmp_path):
    rows = event("aten::mm", "cpu_op", 50, 30), event("cudaLaunchKernel", "cuda_runtime", 60, 5)
    (note,) = (str(note) for note in explained(tmp_path / "cpu", *rows).notes)
    assert "Rank 0 gave work to a device" in note and "on the CPU" in note
    assert explained(tmp_path / "gpu", *rows, kernel("gemm", 100, 200)).notes == ()


@pytest.mark.parametrize("ranks", [1, 2])
def test_no_link_is_judged_where_no_message_met_its_other_side(tmp_path, ranks):
    """A single rank's trace, and ranks whose collectives are of other groups."""
    for rank in range(ranks):
        group = {"Process Group Ranks": f"[{rank}, {rank + 2}]", "Seq": 4}
        rows = kernel("gemm", 0, 100), message("AllReduce_Sum", 100, 900, "allreduce", 10**6, **group)
        explanation = explained(tmp_path, *rows, name=f"rank{rank}.json")
    assert explanation.matched == 0 and not explanation.knows_waiting and explanation.straggler is None
    text = "\n".join(report_lines(explanation, 200))
    assert "how much of that is waiting is not known" in text and "link, not" not in text and "take turns" not in text
    assert ("No verdict on a late rank or a slow link: 0%" in text) == (ranks == 2)
    (row,) = (line.split() for line in text.split("\n") if line.startswith("  waiting"))
    assert row[:3] == ["waiting", "–", "–"]


def test_a_link_is_no_cause_where_most_messages_met_nothing(tmp_path):
    """Rank 1 waits for a rank whose trace is missing, which is no slow link."""
    for rank in (0, 1):
        rows = [kernel("gemm", 0, 100 + 60 * rank)]
        rows.append(message("AllReduce_Sum", 100 + 60 * rank, 200, "allreduce", 10, Seq=1))
        other = {"Process Group Ranks": f"[{rank}, {rank + 2}]", "Process Group Name": "9", "Seq": 4}
        rows.append(message("AllGather", 200, 400 + 500 * rank, "allgather", 10**6, **other))
        explanation = explained(tmp_path, *rows, name=f"rank{rank}.json")
    assert 0 < explanation.matched < 0.9 and getattr(explanation.straggler, "cause", "") != "communication"


def test_a_slower_gpu_is_the_straggler(tmp_path):
    for rank in (0, 1):
        rows = [kernel("gemm", 0, 500 + 200 * rank), message("AllReduce", 500 + 200 * rank, 900, "allreduce", 9, Seq=4)]
        explanation = explained(tmp_path, *rows, name=f"rank{rank}.json")
    assert (explanation.straggler.rank, explanation.straggler.cause) == (1, "compute")
    assert [explanation.by_rank[rank]["waiting"] for rank in (0, 1)] == [pytest.approx(200e-6), 0]


@pytest.mark.parametrize(("first", "lag"), [(100, 550), (650, 0)])
def test_a_gpu_that_falls_behind_the_cpu_has_longer_steps_than_the_marks_say(tmp_path, first, lag):
    """Its last kernel ends 600 µs after the step. In the second case it lags as much when the step begins."""
    launches = ((50, first), (500, 1000))
    rows = [event("cudaLaunchKernel", "cuda_runtime", at, 5, correlation=starts) for at, starts in launches]
    notes = explained(tmp_path, *rows, kernel("gemm", first, 1000), kernel("gemm", 1000, 1600)).notes
    said = f"The GPU of rank 0 fell behind the CPU by {lag} µs during these steps"
    assert [str(note).partition(",")[0] for note in notes] == [said] * bool(lag)
