"""The training script that `deepspeed` launches with ds_config.json; it needs the extra `engines`.

deepspeed --num_gpus 2 deepspeed_train.py --deepspeed_config ds_config.json      (DS_ACCELERATOR=cpu without a GPU)

The JSON lies in helpers/chapters/deepspeed_job/.
"""

from __future__ import annotations

import argparse
import logging
import os


def main() -> None:
    import deepspeed
    import torch

    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    parser.add_argument("--local_rank", type=int, default=0)  # the launcher gives it
    args = parser.parse_args()
    log = logging.getLogger("DeepSpeed")
    for one in (log, *log.handlers):
        one.setLevel(logging.INFO)  # else the lines of steps_per_print are dropped
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(args=args, model=model, optimizer=optimizer)  # four values
    dtype = next(engine.parameters()).dtype
    loss_of, steps = torch.nn.CrossEntropyLoss(), 10
    x = torch.randn(engine.train_micro_batch_size_per_gpu(), 10).to(engine.device, dtype)
    y = torch.zeros(len(x), dtype=torch.long, device=engine.device)
    for _ in range(steps * engine.gradient_accumulation_steps()):
        loss = loss_of(engine(x).float(), y)  # the output is no loss
        engine.backward(loss)
        engine.step()  # steps the optimizer at each second call, and clears the gradients
    rank, steps = os.environ["RANK"], engine.global_steps
    print(f"rank {rank} took {steps} steps on {len(x)} examples each, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
