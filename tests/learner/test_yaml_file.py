"""YAML as dataclasses: each thing that can be wrong in a file is answered with its file, line and field."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from helpers.learner.words import Words
from helpers.learner.yaml_file import AnyWords, Code, named, read_list, read_texts, read_yaml, unfold


@dataclass(frozen=True, kw_only=True)
class Wheel:
    size: float
    spokes: int = 0

    def __post_init__(self) -> None:
        if self.spokes > 99:
            raise ValueError("a wheel has less than 100 spokes")


@dataclass(frozen=True, kw_only=True)
class Vehicle:
    name: str
    title: Words
    kind: Literal["bike", "car"]
    wheels: tuple[Wheel, ...]
    made_in: Annotated[str, named({"fr": "France"})] = ""
    spare: Wheel | None = None
    spares: dict[str, Wheel] = field(default_factory=dict)
    label: AnyWords | None = None
    print: Code = ""
    is_old: bool = False
    more: Any = None
    where: str = ""


BIKE = """\
vehicles:
  - name: roadster
    title: {en: A bike, zh: 自行车}
    kind: bike
    wheels:
      - {size: 28}
      - size: 2.8e1
        spokes: 36
"""


def read(folder, text):
    (folder / "file.yaml").write_text(text, encoding="utf-8")
    return read_list(folder / "file.yaml", "vehicles", Vehicle)


def test_the_annotations_say_how_a_mapping_is_read(tmp_path):
    more = "    made_in: fr\n    spares: {front: {size: 3}}\n    label: 28\n    print: |\n\n      a\n    is_old: true\n"
    (bike,) = read(tmp_path, BIKE + more + "    more: [1, x]\n    spare: {size: 1}\n")
    assert bike == Vehicle(
        name="roadster", title=Words(en="A bike", zh="自行车"), kind="bike", made_in="France", label=Words.of("28"),
        wheels=(Wheel(size=28), Wheel(size=28, spokes=36)), spare=Wheel(size=1), spares={"front": Wheel(size=3)},
        print="a", is_old=True, more=[1, "x"], where="file.yaml line 2 (roadster)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("vehicles:", "cars:", "file.yaml: the file must hold a list under `vehicles:` and nothing else"),
        ("    kind: bike\n", "", "file.yaml line 2: the field `kind` is missing; add it"),
        (
            "    kind:",
            "    extra: 1\n    kind:",
            "line 2: `extra` is no field here; the known ones are name, title, kind",
        ),
        ("kind: bike", "kind: boat", r"line 2 \(roadster\): `kind` is 'boat'; it must be one of bike, car"),
        ("kind: bike", "kind: bike\n    made_in: xy", "`made_in` is 'xy'; it must be one of fr"),
        ("kind: bike", "kind: bike\n    is_old: no", "`is_old` is False; write true, or leave it out"),
        ("kind: bike", "kind: bike\n    spares: [1]", r"`spares` is \[1\]; write a mapping"),
        ("kind: bike", "kind: bike\n    kind: car", r"line 2: this is not YAML \(a field is given twice"),
        ("zh: 自行车", "zh: bike", "`title.zh` holds no Chinese character; translate it"),
        ("en: A bike", "en: 64", "`title.en` is 64; write a text there"),
        ("{en: A bike, zh: 自行车}", "A bike", "`title` must hold `en:` and `zh:`"),
        ("en: A bike", "en: `A bike`", "file.yaml line 3: this is not YAML"),
        ("- {size: 28}", "- {spokes: 28}", "file.yaml line 6: the field `wheels.size` is missing"),
        ("- {size: 28}", "- {size: '28'}", "`wheels.size` is '28'; it must be a number"),
        (
            "- {size: 28}",
            "- {size: 28, colour: red}",
            "`wheels.colour` is no field here; the known ones are size, spokes",
        ),
        ("- {size: 28}", "- 28", r"line 2 \(roadster\): `wheels`: this must be a mapping with the fields size"),
        ("spokes: 36", "spokes: 136", "file.yaml line 7: a wheel has less than 100 spokes"),
        ("spokes: 36\n", "spokes: 36\n  - name: Roadster\n", "file.yaml line 9: the field `title` is missing"),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_field(tmp_path, old, new, sentence):
    assert old in BIKE
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, BIKE.replace(old, new))


def test_wheels_must_be_a_list_and_a_name_is_given_once(tmp_path):
    with pytest.raises(
        ValueError, match=r"line 2 \(roadster\): `wheels` must be a list; start each entry with a hyphen"
    ):
        read(tmp_path, BIKE.partition("    wheels:")[0] + "    wheels: 2\n")
    with pytest.raises(ValueError, match="file.yaml line 9: 'Roadster' is taken by file.yaml line 2; choose another"):
        read(tmp_path, BIKE + BIKE.partition("\n")[2].replace("roadster", "Roadster"))


def test_a_file_in_json_reads_the_same_and_its_errors_name_the_file(tmp_path):
    expected = read(tmp_path, BIKE)
    text = json.dumps(read_yaml(tmp_path / "file.yaml"), ensure_ascii=False)
    (bike,) = read(tmp_path, text)
    assert [bike.title, bike.wheels] == [expected[0].title, expected[0].wheels]
    with pytest.raises(ValueError, match=r"file.yaml \(roadster\): `kind` is 'ship'; it must be one of bike, car"):
        read(tmp_path, text.replace('"bike"', '"ship"'))


def test_read_texts_leaves_numbers_and_truth_values_as_they_are_written(tmp_path):
    (tmp_path / "file.yaml").write_text("needs: {03: [01], on: yes}", encoding="utf-8")
    assert read_texts(tmp_path / "file.yaml") == {"needs": {"03": ["01"], "on": "yes"}}


@pytest.mark.parametrize(
    ("lines", "joined"),
    [
        ("完全没有\n**重叠**。", "完全没有**重叠**。"),
        ("**数据并行。**\n每个 rank", "**数据并行。**每个 rank"),
        ("每个\nrank 都", "每个 rank 都"),
        ("not\n**bold**", "not **bold**"),
    ],
)
def test_a_line_that_begins_in_bold_joins_without_a_space_in_chinese_alone(lines, joined):
    assert unfold(lines) == joined


@pytest.mark.parametrize(
    ("folded", "joined"),
    [
        ("发送\n64 MB", "发送 64 MB"), ("发送，\n64 MB", "发送，64 MB"), ("数据：\n**64 MB**", "数据：**64 MB**"),
        ("**算完。**\nDDP 平均", "**算完。**DDP 平均"), ("rank\n（进程）", "rank（进程）"),
        ("发送\n**数据**", "发送**数据**"),
    ],
)  # fmt: skip
def test_chinese_lines_are_joined_without_a_space_where_none_belongs(folded, joined):
    assert unfold(folded) == joined
