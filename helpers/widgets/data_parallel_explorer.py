"""The dials of chapter 02: turn devices, link, parameters and Python's share, and see the master become too slow."""

from __future__ import annotations

from helpers.draw import timeline_scene
from helpers.draw.scene import Scene
from helpers.learner.words import book
from helpers.predict.time.data_parallel import DataParallelStep, simulate_data_parallel_step
from helpers.quantities.units import format_count, format_seconds
from helpers.records import Timeline
from helpers.specs import Link
from helpers.widgets.dials import dial
from helpers.widgets.explorer import Explorer

say = book("timelines").section("data_parallel")
PARAMETERS = (1_000_000, 10_698_240, 25_000_000, 124_000_000, 350_000_000)
GIGABYTES = (3, 6, 12, 25, 50, 100)  # a second; PCIe 3.0 x16 carries about 12
TOKENS, VOCABULARY = 16_384, 68  # of the whole batch
FLOPS_PER_SECOND = 10e12  # that a device reaches


class DataParallelExplorer(Explorer):
    """One DataParallel step of a GPT in fp32, predicted. Without a front end: `.devices.value = 8`, then `.sentence`.

    Dials: devices (1 to 8, the first is the master), link (GB/s of the master's link), parameters, python
    (milliseconds in which one replica's forward holds Python's lock). Batch: 16,384 tokens, whatever the devices.
    """

    TEXT = "[widget] DataParallelExplorer: one step, with dials for devices, link, parameters and Python's share"

    def __init__(self) -> None:
        self.devices = dial([(str(n), n) for n in range(1, 9)], 4, say("devices"), tooltip=say("of_one"))
        self.link = dial([(f"{n} GB/s", n) for n in GIGABYTES], 12, say("link"), tooltip=say("carries"))
        self.parameters = dial(
            [(format_count(n), n) for n in PARAMETERS], 10_698_240, say("parameters"), tooltip=say("of_model")
        )
        self.python = dial(
            [(f"{n} ms", n) for n in (0, 1, 2, 5, 10, 20)],
            2,
            say("lock"),
            tooltip=say("holds"),
        )
        super().__init__((self.devices, self.link, self.parameters, self.python))

    def step(self, num_devices: int) -> Timeline:
        """The predicted step on this many devices, the other dials as they stand. Seconds."""
        forward = 2 * self.parameters.value * TOKENS / FLOPS_PER_SECOND  # Kaplan et al. 2020, table 1
        needs = DataParallelStep(
            num_devices=num_devices,
            parameter_bytes=4 * self.parameters.value,
            input_bytes=8 * TOKENS,
            output_bytes=4 * TOKENS * VOCABULARY,
            forward_seconds=forward,
            backward_seconds=2 * forward,
            python_seconds=self.python.value * 1e-3,
        )
        return simulate_data_parallel_step(needs, link=Link(latency=10e-6, bandwidth=self.link.value * 1e9))

    @property
    def scene(self) -> Scene:
        """The picture of the dials as they stand; its axis reaches at least to the step of one device."""
        num_devices, size = self.devices.value, format_count(self.parameters.value)
        title = say("title", size=size, devices=num_devices)
        names = [say("the_master"), *(say("of_number", number=n) for n in range(1, num_devices))]
        return timeline_scene(self.step(num_devices), title=title, end=self.step(1).duration, names=names)

    @property
    def sentence(self) -> str:
        """Speed-up over one device, and how long the master's link is busy while nobody computes."""
        step = self.step(self.devices.value)
        gain = self.step(1).duration / step.duration
        busy, whole = format_seconds(step.exposed_communication(0)), format_seconds(step.duration)
        return say("sentence", gain=gain, busy=busy, whole=whole)

    @property
    def rows(self) -> list[dict[str, str]]:
        """What each device does in the step."""
        step = self.step(self.devices.value)
        return [
            {
                say("device"): say["master"].say(None, rank) if rank == 0 else str(rank),
                say("computes"): format_seconds(computes),
                say("sends"): format_seconds(step.busy(rank, "communication")),
                say("waits"): format_seconds(step.duration - computes - step.exposed_communication(rank)),
            }
            for rank in range(self.devices.value)
            for computes in [step.busy(rank, "compute")]
        ]
