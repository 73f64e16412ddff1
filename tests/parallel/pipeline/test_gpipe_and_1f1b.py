"""GPipe and 1F1B on one screen train like one process and like torch.distributed.pipelining, and keep what they say."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

from helpers.chapters import pipeline
from helpers.devices import computing_device
from helpers.observe.comms import record_comms
from helpers.observe.training import OneProcess, Training
from helpers.parallel.pipeline.gpipe_and_1f1b import MiniPipeline

STEPS, ROWS, WIDTH, LAYERS = 3, 24, 6, 8
SCHEDULES = {"gpipe": pipelining.ScheduleGPipe, "one_f_one_b": pipelining.Schedule1F1B}
LOSS = nn.functional.mse_loss


def layers():
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS))).double()


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2, ROWS, WIDTH, generator=generator, dtype=torch.float64)


TRAINING = Training(model=layers, batch=batch, loss=LOSS, options=dict(lr=1e-2), steps=STEPS)


class StageRank(OneProcess):
    """A rank that holds its share of the layers, under their names in the whole model."""

    def __init__(self, model, training, schedule, num_microbatches):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        places = torch.tensor_split(torch.arange(LAYERS), self.size)[self.rank].tolist()
        super().__init__(model[places[0] : places[-1] + 1], training)
        self.prepare(schedule, num_microbatches)


class Ours(StageRank):
    def prepare(self, schedule, num_microbatches):
        pipeline = MiniPipeline(self.model, LOSS, (ROWS // num_microbatches, WIDTH))
        run = getattr(pipeline, schedule)
        self.forward_backward = lambda x, y: run(x.chunk(num_microbatches), y.chunk(num_microbatches))


class Torchs(StageRank):
    def prepare(self, schedule, num_microbatches):
        stage = pipelining.PipelineStage(self.model, self.rank, self.size, computing_device())
        self.runtime = SCHEDULES[schedule](stage, n_microbatches=num_microbatches, loss_fn=LOSS)

    def forward_backward(self, x, y):
        losses, is_last = [], self.rank == self.size - 1
        self.runtime.step(*([] if self.rank else [x]), **(dict(target=y, losses=losses) if is_last else {}))
        return torch.stack(losses).mean().detach() if losses else None


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("strategy", "num_ranks", "num_microbatches"),
    [*((Ours, *sizes) for sizes in ((2, 4), (4, 4), (4, 8), (4, 2), (3, 1), (1, 4))), (Torchs, 2, 4), (Torchs, 4, 4)],
)
def test_every_rank_equals_one_process(ranks, strategy, schedule, num_ranks, num_microbatches):
    """Ours, and torch's: so both train alike."""
    trained = TRAINING.under(strategy, schedule=schedule, num_microbatches=num_microbatches)
    pipeline._compare(TRAINING.run(), ranks[:num_ranks].run(trained.run))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_micro_batch_sends_one_activation_and_one_gradient_per_link(ranks, schedule):
    def messages():
        with record_comms() as recorder:
            TRAINING.under(Ours, schedule=schedule, num_microbatches=4).run()
        return recorder.log.count("send"), recorder.log.payload_bytes("send")

    payload = ROWS // 4 * WIDTH * 8
    ends, middle = 4 * STEPS, 8 * STEPS
    assert ranks.run(messages) == [(n, n * payload) for n in (ends, middle, middle, ends)]
