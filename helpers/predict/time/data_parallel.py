"""One step of `nn.DataParallel`, simulated: every byte crosses the master's link, and nothing hides behind compute.

The model: the master's link carries one message at a time, each for its alpha-beta seconds (`Link.seconds`). Python
launches the replicas' forwards one after the other, because one thread at a time holds the interpreter's lock; what
they launched then runs side by side. Backward is launched by C++ threads, one a device, and needs no lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from helpers.records import Span, Timeline
from helpers.specs import Link


@dataclass(frozen=True, kw_only=True)
class DataParallelStep:
    """What one step needs. Sizes in bytes, times in seconds.

    parameter_bytes: all parameters. input_bytes, output_bytes: of the whole batch.
    forward_seconds, backward_seconds: of the whole batch on one device.
    python_seconds: the part of one replica's forward that holds Python's lock; it does not shrink with the batch.
    Raises ValueError for a negative size or time, or fewer than 1 device.
    """

    num_devices: int
    parameter_bytes: float
    input_bytes: float
    output_bytes: float
    forward_seconds: float
    backward_seconds: float
    python_seconds: float = 0.0
    optimizer_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise ValueError(f"DataParallelStep(num_devices={self.num_devices}): expected 1 or more")
        for name, value in vars(self).items():
            if not value >= 0:
                raise ValueError(f"DataParallelStep({name}={value!r}): expected 0 or more")


def simulate_data_parallel_step(step: DataParallelStep, *, link: Link) -> Timeline:
    """A predicted Timeline, one lane pair a device, in seconds from the start of the scatter."""
    clock = _Clock(step.num_devices, link)
    share = step.num_devices
    clock.messages("scatter", step.input_bytes / share)
    clock.messages("replicate", step.parameter_bytes)
    clock.side_by_side("forward", step.forward_seconds / share, stagger=step.python_seconds)
    clock.messages("gather", step.output_bytes / share)
    clock.messages("scatter gradients", step.output_bytes / share)
    clock.side_by_side("backward", step.backward_seconds / share)
    clock.messages("reduce", step.parameter_bytes)
    clock.compute(0, "optimizer", clock.now, clock.now + step.optimizer_seconds)
    shown = tuple(span for span in clock.spans if span.duration > 0)
    return Timeline(spans=shown, source="predicted", title=f"DataParallel, {step.num_devices} devices")


@dataclass
class _Clock:
    """The spans so far, and when the last of them ended: the phases of a step follow each other."""

    num_devices: int
    link: Link
    now: float = 0.0
    spans: list[Span] = field(default_factory=list)

    def messages(self, name: str, num_bytes: float) -> None:
        """One message between the master and each other device, one after the other; both ends are busy with it."""
        took = self.link.seconds(num_bytes)
        for device in range(1, self.num_devices):
            for end in (0, device):
                self._add(end, "communication", name, "communication", self.now, self.now + took, round(num_bytes))
            self.now += took

    def side_by_side(self, kind: str, duration: float, stagger: float = 0.0) -> None:
        """The same work on every device; each starts `stagger` seconds after the one before."""
        start = self.now
        for device in range(self.num_devices):
            begin = start + device * stagger
            self.compute(device, kind, begin, begin + stagger + duration)
        self.now = start + self.num_devices * stagger + duration

    def compute(self, device: int, kind: str, start: float, end: float) -> None:
        self._add(device, "compute", kind, kind, start, end, 0)

    def _add(self, device: int, lane: str, name: str, kind: str, start: float, end: float, num_bytes: int) -> None:
        self.spans.append(Span(rank=device, lane=lane, name=name, kind=kind, start=start, end=end, num_bytes=num_bytes))
