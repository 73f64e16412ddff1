"""Which modules of a model are gathered as one unit, and which parameters belong to which of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from torch import nn

Wrap = Callable[[nn.Module], bool] | Iterable[type[nn.Module]] | None
_LISTS = (nn.ModuleList, nn.ModuleDict)  # never called themselves, so what they hold counts


@dataclass
class Use:
    """A parameter, all its names, and where modules keep it: (module, its own name there). Tied ones have several."""

    parameter: nn.Parameter
    names: list[str] = field(default_factory=list)
    places: list[tuple[nn.Module, str]] = field(default_factory=list)


def blocks_of(module: nn.Module) -> Iterator[nn.Module]:
    """The elements of the outermost ModuleLists, ModuleDicts and Sequentials: the layers of most models."""
    for child in module.children():
        if isinstance(child, _LISTS) or not isinstance(module, (*_LISTS, nn.Sequential)):
            yield from blocks_of(child)
        else:
            yield child


def unit_rule(model: nn.Module, wrap: Wrap) -> Callable[[nn.Module], bool]:
    """The rule that says of a module whether it is a unit."""
    if wrap is None:
        return set(blocks_of(model)).__contains__
    if callable(wrap) and not isinstance(wrap, type):
        return wrap
    classes = (wrap,) if isinstance(wrap, type) else tuple(wrap)
    return lambda module: isinstance(module, classes)


def group_by_unit(model: nn.Module, wrap: Wrap = None) -> list[tuple[nn.Module, list[Use]]]:
    """Every parameter once, with the module at whose forward it is gathered, in the order of `named_parameters`.

    That is the innermost unit around it, or the model itself where there is none or several units share it. Parameters
    of another dtype, or frozen ones beside trainable ones, stand in an entry of their own.
    """
    is_unit = unit_rule(model, wrap)
    uses: dict[nn.Parameter, Use] = {}
    homes: dict[nn.Parameter, set[nn.Module]] = {}
    for path, module, home in _walk(model, "", model, is_unit):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                use = uses.setdefault(parameter, Use(parameter))
                use.names.append(path + name)
                use.places.append((module, name))
                homes.setdefault(parameter, set()).add(home)
    groups: dict[tuple, list[Use]] = {}
    for parameter, use in uses.items():
        home = homes[parameter].pop() if len(homes[parameter]) == 1 else model
        groups.setdefault((home, parameter.dtype, parameter.device, parameter.requires_grad), []).append(use)
    return [(home, same) for (home, *_), same in groups.items()]


def _walk(
    module: nn.Module, path: str, home: nn.Module, is_unit: Callable[[nn.Module], bool]
) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    """Every module under every path that leads to it, with the innermost unit around it."""
    home = module if is_unit(module) else home
    yield path, module, home
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, f"{path}{name}.", home, is_unit)
