"""Lab 09: composing. Three tasks ask who does what on any mesh, three run on live ranks with the groups of a mesh.

places.py   09.places, 09.batch    seeds.py   09.seeds
loss.py     09.loss      sync.py    09.sync     norm.py    09.norm    meshes.py   meshes and their groups
"""

from helpers.grading.registry import Lab

LAB = Lab(
    number="09",
    topic="composing",
    tasks=("places.PLACES", "places.BATCH", "seeds.TASK", "loss.TASK", "sync.TASK", "norm.TASK"),
    forbids=(
        "torch.distributed.device_mesh",
        "torch.distributed.init_device_mesh",
        "torch.distributed.DeviceMesh",
        "torch.distributed.fsdp",
        "torch.distributed._composable",
        "torch.distributed.tensor",
        "torch.distributed._tensor",
        "torch.nn.parallel",
    ),
)
