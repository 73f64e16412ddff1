"""Widespread wrong claims, each with the run that refutes it. The runs need torch and are imported when they are run.

`myths.yaml` holds the words and, for each number, what the claim would have made of it. A test runs them all.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from helpers.interview.bank_file import check_fields, read_entries, read_list, read_shown_by, read_text
from helpers.interview.cards import Cell, Source
from helpers.interview.render import BOX, inline, shown_html
from helpers.interview.verify import function_named, rounds_to, stands_in
from helpers.learner.words import LANGUAGES, Words

FILE = Path(__file__).parent / "myths.yaml"
MYTH_FIELDS = {"required": ("id", "claim", "truth", "run", "finds", "shown_by")}
MYTH_FIELDS["known"] = MYTH_FIELDS["required"]
FINDING_FIELDS = {"required": ("name", "value", "says"), "known": ("name", "value", "says", "claimed", "tolerance")}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A number of a run. value: what it returns under `name`, within `tolerance` of it. says: as the truth prints it.

    claimed: what it would be if the claim were true, a number or a comparison with another one: "< gpipe_bubble".
    """

    name: str
    value: float
    says: str
    claimed: float | str | None = None
    tolerance: float = 1e-9


@dataclass(frozen=True, kw_only=True)
class Myth:
    """A claim, what is true instead, and the dotted name of the function that settles it on four ranks."""

    id: str
    claim: Words
    truth: Words
    run: str
    finds: tuple[Finding, ...]
    shown_by: Cell | Source
    where: str = ""

    def refute(self, ranks: Any) -> Refutation:
        """Run it on a pool of four ranks (`helpers.ranks.Ranks(4)`)."""
        return Refutation(myth=self, found=function_named(self.run)(ranks))


@dataclass(frozen=True, kw_only=True)
class Refutation:
    """What the run of a myth returned: numbers by name."""

    myth: Myth
    found: dict[str, float]

    @property
    def problems(self) -> list[str]:
        """Where the run, the numbers in the file and the words disagree, one sentence each; [] when all is right."""
        return [sentence for finding in self.myth.finds for sentence in self._problems(finding)]

    def _problems(self, finding: Finding) -> list[str]:
        where, value = f"{self.myth.where}: `{finding.name}`", self.found.get(finding.name)
        if value is None:
            return [f"{where} is not what {self.myth.run} returns; it returns {', '.join(self.found)}"]
        sentences = []
        if not _near(value, finding.value, finding.tolerance):
            sentences.append(f"{where}: the run returns {value!r}, the file expects {finding.value!r}")
        if not rounds_to(finding.says, value):
            sentences.append(f"{where}: the truth says {finding.says!r}, the run returns {value!r}")
        if finding.claimed is not None and self._holds(value, finding.claimed):
            sentences.append(f"{where}: the run returns {value!r}, what the claim says; it refutes nothing")
        texts = asdict(self.myth.truth).items()
        missing = [language for language, text in texts if not stands_in(finding.says, text)]
        return sentences + [f"{where}: the truth in `{one}` does not contain {finding.says!r}" for one in missing]

    def _holds(self, value: float, claimed: float | str) -> bool:
        """Whether what was found is what the claim says, within one percent."""
        if not isinstance(claimed, str):
            return _near(value, claimed, 0.01)
        sign, name = claimed.split()
        return not _near(value, self.found[name], 0.01) and (value < self.found[name]) == (sign == "<")

    def __repr__(self) -> str:
        numbers = [_words(finding, self.found[finding.name]) for finding in self.myth.finds]
        return f"{self.myth.id}: {'; '.join(numbers)}"


def _near(value: float, expected: float, tolerance: float) -> bool:
    return abs(value - expected) <= tolerance * max(abs(value), abs(expected))


def _words(finding: Finding, value: float) -> str:
    claimed = f"{finding.claimed:g}" if isinstance(finding.claimed, int | float) else finding.claimed
    return f"{finding.name} {value:.4g}" + (f", not {claimed}" if claimed else "")


class Myths(tuple[Myth, ...]):
    """All of them; a notebook shows each claim folded over what is true."""

    def __repr__(self) -> str:
        return "\n".join(
            [f"Widespread claims that a run refutes: {len(self)}", *(f"- {myth.claim.en}" for myth in self)]
        )

    def _repr_html_(self) -> str:
        return f"<div>{''.join(map(_html, self))}</div>"


def myths(file: Path = FILE) -> Myths:
    """The claims of `myths.yaml`. Raises ValueError with file, line and field where it is not as it should be."""
    return Myths(read_entries(Path(file), "myths", _read, lambda myth: [myth.id]))


def _read(fields: Any, where: str) -> Myth:
    check_fields(fields, MYTH_FIELDS, where, "myth")
    where = f"{where} ({fields['id']})"
    finds = tuple(_read_finding(item, where) for item in read_list(fields, "finds", where))
    if not any(finding.claimed is not None for finding in finds):
        raise ValueError(
            f"{where}: no entry of `finds` has `claimed`, so the run refutes nothing; add what it would be"
        )
    return Myth(
        id=str(fields["id"]),
        claim=read_text(fields["claim"], where, "claim"),
        truth=read_text(fields["truth"], where, "truth"),
        run=str(fields["run"]),
        finds=finds,
        shown_by=read_shown_by(fields["shown_by"], where),
        where=where,
    )


def _read_finding(fields: Any, where: str) -> Finding:
    check_fields(fields, FINDING_FIELDS, where, "number under `finds`")
    return Finding(**{name: str(value) if name in ("name", "says") else value for name, value in fields.items()})


def _html(myth: Myth) -> str:
    summary = f'<span lang="en">{inline(myth.claim.en)}</span><br><span lang="zh">{inline(myth.claim.zh)}</span>'
    truths = [f'<div lang="{one}" style="{BOX}">{inline(myth.truth.in_(one))}</div>' for one in LANGUAGES]
    return (
        f'<details style="margin:.5em 0"><summary style="cursor:pointer">{summary}</summary>'
        f"{''.join(truths)}{shown_html(myth)}</details>"
    )
