"""12.save: a checkpoint that is whole wherever the writer is killed, and told of when a power cut can take it no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from helpers.grading.drawing import Draw
from helpers.grading.fault_tolerance import LAB
from helpers.grading.fault_tolerance.disk import Disk
from helpers.grading.kit.answers import shortened
from helpers.grading.kit.judging import expect
from helpers.grading.task import Finding, Task, Trial, World

Outcome = dict[str, Any]  # of a save: its crashes, the names that are there, whether it told and what it raised


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """An old checkpoint that is longer, as long, shorter; none; a half file of a writer that was killed before."""
    cases = []
    for number, (old, new) in enumerate(((12, 12), (30, 12), (5, 20), (0, 12), (12, 1))):
        name = rng.one_of("latest.pt", "model.ckpt", "step_40")
        files = {"other.pt": letters(rng, 6)} | ({name: letters(rng, old)} if old else {})
        files |= {f"{name}{end}": letters(rng, 3) for end in (".tmp", ".part") if number == 2}
        cases.append({"files": files, "name": name, "data": letters(rng, new)})
    return [{"cases": cases}]


def letters(rng: Draw, count: int) -> str:
    return "".join(chr(97 + rng.integer(0, 25)) for _ in range(count))


def act(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> list[list[Outcome]]:
    """Of each case the save without an error, and one for each operation with an error from there on."""
    every = []
    for case in inputs["cases"]:
        whole = saved(submitted, case, None)
        operations = len(whole["crashes"])
        every.append([whole, *(saved(submitted, case, at) for at in range(operations))])
    return every


def saved(submitted: Callable, case: Mapping[str, Any], fails_at: int | None) -> Outcome:
    disk, raised = Disk.holding(case["files"], case["name"], fails_at), ""
    try:
        submitted(disk, case["name"], case["data"].encode(), disk.tell)
    except OSError as error:
        if fails_at is None:
            raise
        raised = type(error).__name__
    now = {name: content.machine.decode("latin-1") for name, content in disk.names.items()}
    return {"crashes": list(map(asdict, disk.crashes)), "now": now, "told": disk.told, "raised": raised}


# -- the judge -------------------------------------------------------------------------------------------------------
def judge(world: World) -> Iterator[Finding]:
    for case, (whole, *failing) in zip(world.inputs[0]["cases"], world.outputs[0], strict=True):
        yield from judge_crashes(case, whole)
        yield from judge_end(case, whole)
        for outcome in failing:
            yield from judge_error(case, outcome)


def judge_crashes(case: Mapping[str, Any], outcome: Outcome) -> Iterator[Finding]:
    """Behind each operation the old checkpoint is whole, or the new one; once told of, the new one."""
    old, new, name = case["files"].get(case["name"]), case["data"], case["name"]
    known = [one["mistake"] for one in outcome["crashes"] if one["mistake"]][:1]
    for number, crash in enumerate(outcome["crashes"], start=1):
        right = (new,) if crash["told"] else (old, new)
        where = f"operation {number}, {crash['operation']}", f"第 {number} 个操作（{crash['operation']}）"
        due = ("the new checkpoint", "新的检查点") if crash["told"] else ("the old checkpoint or the new one", "旧的或新的检查点")
        for (en, zh), left in (
            (("is killed behind", "被杀死"), [crash["killed"]]),
            (("loses its power behind", "断电"), crash["powers"]),
        ):
            odd = next((one for one in left if one not in right), new)
            yield expect(
                odd in right,
                f"a writer that {en} {where[0]}, leaves {held(odd)[0]} as {name!r}, expected {due[0]}",
                f"写入者在{where[1]}之后{zh}，{name!r} 处留下的是{held(odd)[1]}，应为{due[1]}",
                mistakes=known,
            )


def held(left: str | None) -> tuple[str, str]:
    if left is None:
        return "no file", "（没有文件）"
    return (f"{len(left)} bytes, {shortened(left, 30)},", f" {len(left)} 个字节 {shortened(left, 30)}") if left else (
        "an empty file",
        "空文件",
    )


def judge_end(case: Mapping[str, Any], outcome: Outcome) -> Iterator[Finding]:
    """It tells, and nothing else has changed."""
    known = [one["mistake"] for one in outcome["crashes"] if one["mistake"]][:1]
    got = outcome["now"].get(case["name"])
    yield expect(
        got == case["data"],
        f"afterwards there is {held(got)[0].rstrip(',')} as {case['name']!r}, expected {shortened(case['data'], 30)}",
        f"之后 {case['name']!r} 处是{held(got)[1]}，应为 {shortened(case['data'], 30)}",
        mistakes=known,
    )
    yield expect(outcome["told"], "it never calls tell()", "从未调用 tell()")
    strangers = sorted(set(outcome["now"]) - set(case["files"]) - {case["name"]})
    yield expect(not strangers, f"it leaves {shortened(strangers)} behind", f"留下了 {shortened(strangers)}")
    kept = outcome["now"].get("other.pt") == case["files"]["other.pt"]
    yield expect(kept, "it changes 'other.pt', which is another checkpoint", "改动了 'other.pt'，那是另一个检查点")


def judge_error(case: Mapping[str, Any], outcome: Outcome) -> Iterator[Finding]:
    """An OSError goes to the caller, nobody is told, and the crash states are as good as without it."""
    safe = outcome["raised"] or outcome["told"]
    yield expect(
        bool(safe),
        "the disk raises OSError (no space left), and save returns as if nothing were wrong",
        "磁盘抛出 OSError（空间不足），save 却像没事一样返回",
    )
    yield from judge_crashes(case, outcome)


TASK = Task(
    key="12.save",
    signature="save(disk, name, data, tell)",
    make=make,
    act=act,
    judge=judge,
    hints=LAB.hints("written_in_place", "old_removed_first", "renamed_too_early", "told_too_early"),
    world_sizes=(1,),
    unit="device",
)
