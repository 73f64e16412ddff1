"""12.save: a checkpoint that is whole wherever the writer is killed, and told of when no power cut can take it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.fault_tolerance import LAB
from helpers.grading.fault_tolerance.disk import Disk
from helpers.grading.kit.comparisons import expect
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words

Case = Mapping[str, Any]  # files, the name of the checkpoint, its data
GOOD, FULL = Words.of(""), Words(en="on a disk that is full from operation {} on, ", zh="磁盘从第 {} 个操作起已满，")
DUE = {True: ("the new checkpoint", "新的检查点"), False: ("the old checkpoint or the new one", "旧的或新的检查点")}
KINDS = {"killed": ("a kill", "进程被杀死"), "powers": ("a power cut", "断电")}


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """An old checkpoint as long, longer, shorter; none; and with half files of a writer that was killed before."""
    cases = []
    for number, (old, new) in enumerate(((12, 12), (30, 12), (5, 20), (0, 12), (12, 1))):
        name = rng.one_of("latest.pt", "model.ckpt", "step_40")
        files = {"other.pt": letters(rng, 6)} | ({name: letters(rng, old)} if old else {})
        files |= {f"{name}{end}": letters(rng, 3) for end in (".tmp", ".part") if number == 2}
        cases.append({"files": files, "name": name, "data": letters(rng, new)})
    return [{"cases": cases}]


def letters(rng: CaseGenerator, count: int) -> str:
    return "".join(chr(97 + rng.integer(0, 25)) for _ in range(count))


def run_submission(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[list[dict[str, Any]]]:
    """Of each case the save on a good disk, then one for each operation with a disk that is full from there on."""
    every = []
    for case in inputs["cases"]:
        good = saved(submitted, case, None)
        every.append([good, *(saved(submitted, case, at) for at in range(len(good["crashes"])))])
    return every


def saved(submitted: Callable, case: Case, fails_at: int | None) -> dict[str, Any]:
    disk, raised = Disk(case["files"], case["name"], fails_at), False
    try:
        submitted(disk, case["name"], case["data"].encode(), disk.tell)
    except OSError:
        if fails_at is None:
            raise
        raised = True
    now = {name: content.machine.decode() for name, content in disk.names.items()}
    return {"crashes": disk.crashes, "mistake": disk.mistake, "now": now, "told": disk.told, "raised": raised}


# -- the judge -------------------------------------------------------------------------------------------------------
def judge(world: JudgedWorld) -> Iterator[Judgement]:
    for case, (good, *failing) in zip(world.inputs[0]["cases"], world.outputs[0], strict=True):
        yield from judge_crashes(case, good)
        yield from judge_end(case, good)
        for at, one in enumerate(failing, start=1):
            full, is_known = FULL.format(at), one["raised"] or one["told"]
            yield from judge_crashes(case, one, full)
            yield expect(is_known, f"{full.en}save returns without OSError", f"{full.zh}save 却没有抛出 OSError")


def judge_crashes(case: Case, one: Mapping[str, Any], full: Words = GOOD) -> Iterator[Judgement]:
    """Behind each operation the old checkpoint is whole, or the new one; once others were told, the new one."""
    old, new = case["files"].get(case["name"]), case["data"]
    for number, crash in enumerate(one["crashes"], start=1):
        right = (new,) if crash["told"] else (new, old)
        due = DUE[crash["told"]]
        for kind, (en, zh) in KINDS.items():
            left = [crash[kind]] if kind == "killed" else crash[kind]
            odd = next((text for text in left if text not in right), new)
            yield expect(
                odd in right,
                f"{full.en}{en} after operation {number}, {crash['operation']}, "
                f"leaves {case['name']!r} {told(odd)[0]}, expected {due[0]}",
                f"{full.zh}在第 {number} 个操作 {crash['operation']} 之后{zh}，"
                f"留下的 {case['name']!r} {told(odd)[1]}，应为{due[1]}",
                mistakes=[one["mistake"]] * bool(one["mistake"]),
            )


def told(left: str | None) -> tuple[str, str]:
    if left is None:
        return "missing", "不存在"
    return (f"with the {len(left)} bytes {left!r}", f"有 {len(left)} 个字节 {left!r}") if left else ("empty", "是空的")


def judge_end(case: Case, good: Mapping[str, Any]) -> Iterator[Judgement]:
    """The checkpoint is there, it was told of, and nothing else has changed."""
    got, known = good["now"].get(case["name"]), [good["mistake"]] * bool(good["mistake"])
    en, zh = f"save leaves {case['name']!r} {told(got)[0]}", f"save 留下的 {case['name']!r} {told(got)[1]}"
    yield expect(
        got == case["data"], f"{en}, expected {case['data']!r}", f"{zh}，应为 {case['data']!r}", mistakes=known
    )
    yield expect(good["told"], "save never calls tell()", "save 从未调用 tell()")
    strangers = sorted(set(good["now"]) - set(case["files"]) - {case["name"]})
    yield expect(not strangers, f"save leaves {strangers} behind", f"save 留下了 {strangers}")
    kept = good["now"].get("other.pt") == case["files"]["other.pt"]
    yield expect(kept, "'other.pt', another checkpoint, has changed", "另一个检查点 'other.pt' 变了")


TASK = Task(
    key="12.save",
    signature="save(disk, name, data, tell)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    hints=LAB.hints("written_in_place", "old_removed_first", "renamed_too_early", "told_too_early"),
    world_sizes=(1,),
    runs_on="process",
)
