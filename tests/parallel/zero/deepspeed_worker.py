"""One rank of test_zero_beside_deepspeed: DeepSpeed's stage beside ours and beside one process. Run as a script.

    python deepspeed_worker.py RANK WORLD_SIZE FOLDER STAGE [offload]

It writes FOLDER/RANK.json: the losses of each, and the largest difference of the weights at the end.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

STEPS, BATCH, LR = 10, 12, 1e-2


def config_of(stage: int, size: int, offload: bool) -> dict:
    """DeepSpeed's JSON, key by key."""
    zero: dict = {
        "stage": stage,  # 1: optimizer state; 2: gradients, too; 3: parameters, too
        "reduce_bucket_size": 200,  # elements of a message of gradients
        "allgather_bucket_size": 200,  # stages 1 and 2: elements of a message of parameters
        "stage3_param_persistence_threshold": 0,  # stage 3: parameters up to this size stay whole; 0: none
        "stage3_prefetch_bucket_size": 200,  # stage 3: elements that are gathered ahead
    }
    if offload:  # pin_memory needs a GPU
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    return {
        "train_micro_batch_size_per_gpu": BATCH // size,  # train_batch_size = this x accumulation x ranks
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,  # the largest norm; 0: none
        "zero_allow_untested_optimizer": True,  # torch's AdamW instead of a kernel of DeepSpeed's
        "zero_force_ds_cpu_optimizer": False,  # with offload, too: else it compiles cpu_adam
        "zero_optimization": zero,
    }  # old posts add "fp16": {"enabled": true}: the CPU refuses it, and "bf16" rounds, so this stays in fp32


def build():
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 13), torch.nn.Tanh(), torch.nn.Linear(13, 9), torch.nn.Linear(9, 5))


def batch_of(step: int, rank: int = 0, size: int = 1):
    import torch

    torch.manual_seed(100 + step)
    share = BATCH // size
    return [torch.randn(BATCH, width)[rank * share : (rank + 1) * share] for width in (8, 5)]


def train(model, backward, step_and_clear, rank: int = 0, size: int = 1) -> list[float]:
    losses = []
    for step in range(STEPS):
        x, y = batch_of(step, rank, size)
        loss = (model(x) - y).square().mean()
        backward(loss)
        step_and_clear()
        losses.append(loss.item())
    return losses


def plainly(model, optimizer, rank: int = 0, size: int = 1) -> list[float]:
    def step_and_clear():
        optimizer.step()
        optimizer.zero_grad()

    return train(model, lambda loss: loss.backward(), step_and_clear, rank, size)


def deepspeed_run(stage: int, rank: int, size: int, offload: bool):
    import deepspeed
    import torch

    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config_of(stage, size, offload))
    losses = train(engine, engine.backward, engine.step, rank, size)
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=stage == 3):
        return losses, [p.detach().clone() for p in engine.module.parameters()]


def our_run(stage: int, rank: int, size: int):
    import torch

    from helpers.parallel.zero import Zero1, Zero2, Zero3

    model = build()
    if stage == 3:
        wrapped = Zero3(model)
        losses = plainly(wrapped, torch.optim.AdamW(wrapped.parameters(), lr=LR), rank, size)
        return losses, list(wrapped.full_state().values())
    options = dict(bucket_bytes=800, lr=LR)
    optimizer = (Zero1(model.parameters(), torch.optim.AdamW, **options) if stage == 1
                 else Zero2(model, torch.optim.AdamW, **options))  # fmt: skip
    return plainly(model, optimizer, rank, size), list(model.parameters())


def main(rank: int, size: int, folder: Path, stage: int, offload: bool) -> None:
    import deepspeed
    import torch

    torch.set_num_threads(1)
    deepspeed.init_distributed(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size, auto_mpi_discovery=False
    )
    reference = build()
    expected = plainly(reference, torch.optim.AdamW(reference.parameters(), lr=LR))
    found = {"deepspeed": deepspeed_run(stage, rank, size, offload), "ours": our_run(stage, rank, size)}
    result: dict = {"one process": {"losses": expected}}
    for name, (losses, weights) in found.items():
        gaps = [
            ((a - b).abs().max() / b.abs().max()).item() for a, b in zip(weights, reference.parameters(), strict=True)
        ]
        result[name] = {"losses": losses, "gap": max(gaps)}
    (folder / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    number, total, where, kind = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(total), DS_ACCELERATOR="cpu")
    main(number, total, where, kind, "offload" in sys.argv[5:])
    sys.stdout.flush()
    os._exit(0)  # DeepSpeed's threads may keep a finished process alive, or end it with 1
