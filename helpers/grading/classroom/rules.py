"""What a lab leaves to the learner, and so what a submission must not take from elsewhere."""

from __future__ import annotations

COURSE = ("helpers.parallel", "helpers.primitives", "helpers.collectives", "helpers.grading", "solutions", "tests")
COURSE += ("helpers.schedules", "helpers.predict.pipeline", "helpers.measure.emulate_pipeline")
ALLOWED = ("helpers.grading.check",)
TORCH = {
    "02": ("torch.nn.DataParallel", "torch.nn.parallel", "torch.cuda.comm"),
    "03": (
        "torch.nn.parallel",
        "torch.utils.data.DistributedSampler",
        "torch.utils.data.distributed",
        "torch.distributed.algorithms",
        "torch.distributed._composable",
        "torch.distributed.fsdp",
    ),
    "04": (
        "torch.amp",
        "torch.cuda.amp",
        "torch.cpu.amp",
        "torch.autocast",
        "torch._amp_foreach_non_finite_check_and_unscale_",
        "torch._amp_update_scale_",
        "torch.distributed.fsdp.sharded_grad_scaler",
    ),
    "05": (
        "torch.utils.checkpoint",
        "torch.autograd.graph.save_on_cpu",
        "torch.distributed._tools",
        "torch.nn.functional.linear_cross_entropy",
        "torch.utils._python_dispatch",
    ),
    "06": ("torch.distributed.pipelining",),
    "07": (
        "torch.distributed.tensor",
        "torch.distributed._tensor",
        "torch.distributed.nn",
        "torch.distributed._functional_collectives",
    ),
    "08": (
        "torch.distributed.fsdp",
        "torch.distributed._composable",
        "torch.distributed.optim",
        "torch.distributed.tensor",
        "torch.distributed._tensor",
        "torch.distributed.algorithms",
        "torch.nn.parallel",
    ),
}
NETWORK = ("socket", "urllib", "http", "requests", "httpx", "ftplib", "smtplib", "aiohttp")
PROCESSES = ("subprocess", "multiprocessing", "pty", "torch.multiprocessing")
PROCESSES += ("concurrent.futures.ProcessPoolExecutor", "concurrent.futures.process")  # its threads are right in lab 02
INNARDS = ("ctypes", "gc", "_ctypes")


def forbidden(name: str, lab: str) -> str | None:
    """Why lab "03" does not want the module or object `name`, as the end of a sentence; None where it does not mind."""
    if name in ALLOWED or name == "helpers.grading":
        return None
    if within(name, COURSE):
        return f"uses {name}, which holds what the lab leaves to the learner"
    if within(name, TORCH.get(lab, ())):
        return f"uses torch's own {name}, which the lab leaves to the learner"
    if within(name, NETWORK):
        return f"uses the network ({name})"
    if within(name, PROCESSES):
        return f"starts processes of its own ({name})"
    if within(name, INNARDS):
        return f"looks into Python's memory ({name})"
    return None


def within(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(root + ".") for root in roots)
