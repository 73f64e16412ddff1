"""Runs a small training job that survives the death of a rank: `run(3, folder, 40)`, with mini.py and crash_safe.py.

`run` is the agent: it starts the ranks, reads their heartbeats, and starts all of them again when one is lost. `train`
is what each rank does. agent.py is the form with spares and other plans.
"""

import multiprocessing
import os
import signal
import sys
import time

import torch
import torch._dynamo  # AdamW imports it, which takes seconds, so do it before the clock of a restart runs
import torch.distributed as dist
from torch import nn

from helpers.elastic.crash_safe import save
from helpers.elastic.mini import HeartbeatThread, join, verdict

LIMITS = {"late": 1.0, "dead": 2.0, "hung": 3.0}  # seconds; NCCL's default time-out is 600 s


def new_job():
    """An untrained model and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).double()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def loss_of(model, step, rank=0, num_ranks=1):
    """The loss on this rank's rows of the 12 of a step, which depend on the step alone. The ranks' sum is the mean."""
    x = torch.randn(12, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    squares = (model(x) - x.sin().sum(1, keepdim=True)) ** 2
    return squares[rank::num_ranks].sum() / len(x)


def train(port, generation, num_ranks, folder, steps, fault):
    """What each rank does. fault: (kind, rank, step), a planned death just before this rank's all-reduce."""
    times, path = [time.monotonic()], f"{folder}/checkpoint.pt"
    rank, keys = join(dist.TCPStore("127.0.0.1", port, is_master=False), generation, num_ranks)
    times.append(time.monotonic())
    (model, optimizer), step = new_job(), 0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    keys.set(f"times{rank}", f"{times[0]} {times[1]} {time.monotonic()} {step}")
    own_connection = dist.TCPStore("127.0.0.1", port, is_master=False)  # the other one may be blocked by a wait
    heartbeat = HeartbeatThread(dist.PrefixStore(f"generation {generation}", own_connection), rank)
    while step < steps:
        loss = loss_of(model, step, rank, num_ranks)
        optimizer.zero_grad()
        loss.backward()
        step += 1
        if fault and fault[1:] == (rank, step):
            time.sleep(1e6) if fault[0] == "hang" else os.kill(os.getpid(), getattr(signal, fault[0]))
        heartbeat.step = step
        try:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        except RuntimeError:  # another rank is gone, so the agent will start all of them again
            sys.exit(1)
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
        time.sleep(0.05)  # so that a person can watch
    save(model.state_dict(), f"{folder}/weights{rank}.pt")


def watch(processes, keys, steps):
    """Returns all beats, and "" once all ranks are done, or why the generation must end."""
    beats, newest, started = [], {}, time.monotonic()
    while any(process.is_alive() for process in processes):
        for rank in range(len(processes)):
            if keys.check([f"beat{rank}"]) and newest.get(rank) != (beat := keys.get(f"beat{rank}")):
                newest[rank], (step, sent) = beat, beat.split()
                beats.append((rank, int(step), float(sent), time.monotonic()))
        words = verdict(beats, len(processes), started, time.monotonic(), LIMITS)
        begun, is_over = {rank for rank, step, *_ in beats if step}, any(step == steps for _, step, *_ in beats)
        if len(begun) == len(processes) and not is_over and {"dead", "hung"} & {*words}:  # a first step may be slow
            return beats, ", ".join(f"rank {rank} is {word}" for rank, word in enumerate(words) if word != "alive")
        if any(process.exitcode for process in processes):
            break
        time.sleep(0.02)
    return beats, "a process has ended" if any(process.exitcode for process in processes) else ""


def run(num_ranks, folder, steps, faults=(), context=multiprocessing, max_restarts=3):
    """The agent. faults: one per generation. Returns (start, beats, end, reason, times) of each generation, in seconds.

    times: for each rank when it began, had met the others and had loaded, and the step of its checkpoint; an empty list
    for a rank that died before it had loaded.
    """
    server, history = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), []
    for generation in range(max_restarts + 1):
        start, keys = time.monotonic(), dist.PrefixStore(f"generation {generation}", server)
        arguments = server.port, generation, num_ranks, folder, steps, dict(enumerate(faults)).get(generation)
        processes = [context.Process(target=train, args=arguments) for _ in range(num_ranks)]
        for process in processes:
            process.start()
        beats, reason = watch(processes, keys, steps)
        end = time.monotonic()
        for process in processes:  # all of them end, because no collective can end without the lost rank
            process.kill()
            process.join()
        names = [f"times{rank}" for rank in range(num_ranks)]  # `get` would wait for a key that a dead rank never set
        times = [[float(one) for one in keys.get(name).split()] if keys.check([name]) else [] for name in names]
        history.append((start, beats, end, reason, times))
        if not reason:
            return history
    raise RuntimeError(f"gave up after {max_restarts} restarts: {reason}")
