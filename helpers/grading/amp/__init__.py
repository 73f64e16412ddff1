"""Lab 04: mixed precision.

scaling.py    04.scale      masters.py   04.master      scaler.py    04.scaler
order.py      04.order      together.py  04.overflow
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="04",
    topic="amp",
    tasks=("scaling.SCALE", "masters.MASTER", "scaler.SCALER", "order.ORDER", "together.OVERFLOW"),
    forbids=(
        "torch.amp",
        "torch.cuda.amp",
        "torch.cpu.amp",
        "torch.autocast",
        "torch._amp_foreach_non_finite_check_and_unscale_",
        "torch._amp_update_scale_",
        "torch.distributed.fsdp.sharded_grad_scaler",
    ),
)
