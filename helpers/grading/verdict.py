"""What a check says: passed, or what was expected, what came, on which rank, and the hint for a known mistake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from helpers.grading.task import Finding, Hint, Task, Trouble, Words
from helpers.units import format_seconds

LANGUAGES = ("en", "zh")
NEVER_RAN = ("not_written", "not_callable", "signature", "cannot_send", "no_ranks")


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What one world came to: its findings, or the trouble that ended it."""

    size: int
    findings: tuple[Finding, ...] = ()
    trouble: Trouble | None = None
    mistakes: tuple[str, ...] = ()  # recognised from the trouble
    printed: str = ""

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.ok]

    @property
    def passed(self) -> bool:
        return self.trouble is None and not self.failed

    def recognised(self) -> set[str]:
        return {*self.mistakes, *(key for finding in self.failed for key in finding.mistakes)}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of one check. `text("zh")` is what a learner reads; `mistake` is the key of the hint it shows."""

    key: str
    signature: str
    passed: bool
    tried: tuple[Tried, ...]
    untried: tuple[int, ...]
    mistake: str | None
    hint: Hint | None
    seconds: float
    seed: int
    lang: str = "en"
    unit: str = "rank"

    @classmethod
    def of(cls, task: Task, tried: Sequence[Tried], *, seconds: float, seed: int, lang: str = "en") -> Verdict:
        sizes = {one.size for one in tried}
        untried = tuple(size for size in task.world_sizes if size not in sizes)
        mistake = likeliest(tried, task.hints)
        return cls(
            key=task.key,
            signature=task.signature,
            passed=not untried and all(one.passed for one in tried),
            tried=tuple(tried),
            untried=untried,
            mistake=mistake,
            hint=task.hints[mistake] if mistake else None,
            seconds=seconds,
            seed=seed,
            lang=lang,
            unit=task.unit,
        )

    @property
    def num_comparisons(self) -> int:
        return sum(len(one.findings) for one in self.tried)

    @property
    def was_tried(self) -> bool:
        """False where the machine or an interrupt kept it from running: that is no attempt of the learner's."""
        return not any(one.trouble and one.trouble.kind in ("interrupted", "no_ranks") for one in self.tried)

    @property
    def shown(self) -> Tried | None:
        """The smallest failing world; of those, one in which the mistake shows, if one was recognised."""
        failing = [one for one in self.tried if not one.passed]
        return next((one for one in failing if self.mistake in one.recognised()), failing[0] if failing else None)

    @property
    def printed(self) -> str:
        """What the learner's code printed in the world that is shown, else in the largest."""
        one = self.shown or (self.tried[-1] if self.tried else None)
        return one.printed if one else ""

    def text(self, lang: str | None = None) -> str:
        """In "en" or "zh"; several lines where it failed."""
        lang = lang or self.lang
        if self.passed:
            sizes = ", ".join(str(one.size) for one in self.tried)
            counted = COUNTED[self.unit], Words(en="" if sizes == "1" else "s", zh="")
            values = self.key, sizes, *counted, self.num_comparisons, format_seconds(self.seconds)
            return PASSED.format(*values).in_(lang)
        lines = [NOT_YET.format(self.key), *self._what(), *([self.hint] if self.hint else []), *self._tally()]
        return "\n  ".join(line.in_(lang).replace("\n", "\n  ") for line in lines)

    def __repr__(self) -> str:
        return self.text()

    def _what(self) -> list[Words]:
        one = self.shown
        if one.trouble is not None:
            details = one.trouble.text.replace("\n", "\n  ")
            if self.unit == "device":
                details = details.removeprefix("rank 0 ")  # the one process there is
            world = self._sizes([one.size])
            return [TROUBLES[one.trouble.kind].format(world=world, task=self.signature, details=details)]
        finding = next((f for f in one.failed if self.mistake in f.mistakes), one.failed[0])
        where = WITH if finding.rank is None else ON_RANK
        place = {"size": one.size, "world": self._sizes([one.size]), "unit": UNITS[self.unit], "rank": finding.rank}
        return [where.format(says=finding.says, **place)]

    def _tally(self) -> list[Words]:
        if self.shown.trouble is not None and self.shown.trouble.kind in NEVER_RAN:
            return []
        good = [one.size for one in self.tried if one.passed]
        bad = [one.size for one in self.tried if not one.passed]
        parts = [GOOD.format(self._sizes(good))] if good else []
        parts += [BAD.format(self._sizes(bad))] if bad else []
        parts += [LEFT.format(self._sizes(self.untried))] if self.untried else []
        join = {"en": "; ", "zh": "；"}
        tally = Words(**{lang: join[lang].join(part.in_(lang) for part in parts) for lang in LANGUAGES})
        return [TALLY.format(tally, format_seconds(self.seconds), self.seed)]

    def _sizes(self, sizes: Sequence[int]) -> Words:
        *most, last = map(str, sizes)
        en = f"{', '.join(most)} and {last} {{}}s" if most else f"{last} {{}}{'s' if last != '1' else ''}"
        return Words(en=en, zh=f"{'、'.join([*most, last])} 个{{}}").format(COUNTED[self.unit])


def likeliest(tried: Sequence[Tried], hints: Mapping[str, Hint]) -> str | None:
    """The mistake that explains most of the failing worlds; of equals, the one whose hint stands first."""
    votes = Counter(key for one in tried if not one.passed for key in one.recognised())
    order = list(hints)
    return max(votes, key=lambda key: (votes[key], -order.index(key)), default=None)


UNITS = {"rank": Words(en="rank", zh="rank"), "device": Words(en="device", zh="设备")}
COUNTED = {"rank": Words(en="rank", zh=" rank"), "device": Words(en="device", zh="设备")}  # behind 4 个
PASSED = Words(en="{}  passed · {} {}{} · {} comparisons · {}", zh="{}  通过 · {} 个{}{} · 比较了 {} 处 · {}")
NOT_YET = Words(en="{}  not yet", zh="{}  还没通过")
ON_RANK = Words(en="on {unit} {rank} of {size} {says}", zh="{unit} {rank}（共 {size} 个）：{says}")
WITH = Words(en="with {world} {says}", zh="{world} 时：{says}")
GOOD = Words(en="passed: {}", zh="通过：{}")
BAD = Words(en="failed: {}", zh="未通过：{}")
LEFT = Words(en="not tried: {}", zh="未尝试：{}")
TALLY = Words(en="{} · {} · the same inputs again: seed={}", zh="{} · {} · 用 seed={} 可重现同样的输入")
TROUBLES = {
    "exception": Words(en="with {world} an exception:\n{details}", zh="{world} 时出现异常：\n{details}"),
    "died": Words(en="with {world} a process ended:\n{details}", zh="{world} 时有进程退出：\n{details}"),
    "hang": Words(en="with {world} it hangs:\n{details}", zh="{world} 时程序卡住：\n{details}"),
    "mismatch": Words(
        en="with {world} they do not issue the same operations:\n{details}",
        zh="{world} 时各 rank 的通信操作不一致：\n{details}",
    ),
    "too_long": Words(
        en="with {world} it does not end in time; when it was stopped:\n{details}",
        zh="{world} 时超时未结束；停止时：\n{details}",
    ),
    "interrupted": Words(en="it was interrupted", zh="被中断"),
    "not_written": Words(
        en="it is not written yet: NotImplementedError is still there", zh="还没有写：NotImplementedError 仍在"
    ),
    "not_callable": Words(en="this task wants {task}, but got {details}", zh="本题需要 {task}，得到的是 {details}"),
    "signature": Words(
        en="this task calls {task}, but yours is {details}", zh="本题的调用方式是 {task}，你的函数是 {details}"
    ),
    "cannot_send": Words(en="it cannot be run on the ranks: {details}", zh="无法在各 rank 上运行：{details}"),
    "no_ranks": Words(en="the ranks did not start: {details}", zh="rank 未能启动：{details}"),
    "no_answer": Words(en="the ranks gave no usable answer: {details}", zh="rank 没有给出可用的结果：{details}"),
}
