"""A deep copy whose parameters are taken out and put in again as plain tensors."""

import copy

TASK = "02.replicate"


def replicate(model, num_devices):
    replicas = [model]
    for _ in range(num_devices - 1):
        twin = copy.deepcopy(model)
        for name, parameter in model.named_parameters(remove_duplicate=False):  # one may stand in two places
            place, _, last = name.rpartition(".")
            owner = twin.get_submodule(place)
            delattr(owner, last)
            setattr(owner, last, parameter.clone())
        replicas.append(twin)
    return replicas
