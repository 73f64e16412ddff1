"""Reading what was answered, and judging it: a letter, a number with its unit, or a rating of one's own.

Every function raises ValueError, a sentence in the language asked for, where the answer cannot be read.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import asdict, dataclass

from helpers.interview.cards import Card, Prediction
from helpers.interview.verify import UNITS, stands_in
from helpers.interview.words import RATINGS, say

LONGEST = 60  # characters of an answer that are read
LETTERS = "abcde"
BYTES = ("B", "kB", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")
KINDS = {
    "bytes": BYTES,
    "rate": tuple(f"{unit}/s" for unit in BYTES),
    "time": ("s", "ms", "µs", "us", "min", "h"),
    "plain": ("", "x", "%"),
}
SPOKEN = {
    "byte": "B", "bytes": "B", "字节": "B", "千字节": "kB", "兆字节": "MB", "吉字节": "GB", "太字节": "TB",
    "sec": "s", "second": "s", "seconds": "s", "秒": "s", "毫秒": "ms", "微秒": "µs", "μs": "µs", "minutes": "min",
    "分钟": "min", "分": "min", "hour": "h", "hours": "h", "小时": "h", "倍": "x", "times": "x", "×": "x",
    "percent": "%", "个": "", "次": "", "条": "", "步": "", "张": "",
}  # fmt: skip
FACTORS = UNITS | {f"{unit}/s": UNITS[unit] for unit in BYTES}
SCALES = {"万": 1e4, "亿": 1e8, "thousand": 1e3, "million": 1e6, "billion": 1e9}
NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d{1,3}(?:[, _]\d{3})+(?!\d)|\d+)?(?P<decimals>\.\d*)?(?:[eE](?P<power>[+-]?\d+))?"
    r"(?:\s*[×x*·]\s*10\s*(?:\^|\*\*)\s*(?P<tens>[+-]?\d+))?"
)
ABOUT = re.compile(r"^(?:[~≈=约]|大约|大概|about|approximately)+\s*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An answer, read. rating: "again", "hard", "good" or "easy". sentence: what there is to say about it."""

    passed: bool
    rating: str
    sentence: str


def judge_rating(given: str, language: str) -> Judged:
    """A folded card is rated by whoever answered it: a word in either language, its first letter, or 1 to 4."""
    said = unicodedata.normalize("NFKC", given).strip().lower()
    spellings = {name: rating for rating in RATINGS for name in (rating[0], *asdict(say[rating]).values())}
    spellings |= {str(number): rating for number, rating in enumerate(RATINGS, start=1)}
    if said not in spellings:
        raise ValueError(say("bad_rating", language, given=_short(given)))
    rating = spellings[said]
    sentence = say("rated", language, rating=say(rating, language))
    return Judged(passed=rating != "again", rating=rating, sentence=sentence)


def judge_choice(given: str, options: tuple[str, ...], right: str, language: str) -> Judged:
    """A letter, "b" or "B)"; right is good, wrong is again. right: the text of the right option.

    A digit is no choice: one screen later it is a rating.
    """
    letters = LETTERS[: len(options)]
    said = unicodedata.normalize("NFKC", given).strip().lower().strip("().")
    if len(said) != 1 or said not in letters:
        raise ValueError(say("bad_letter", language, given=_short(given), letters=letters))
    if options[letters.index(said)] == right:
        return Judged(passed=True, rating="good", sentence=say("right_choice", language))
    text = right if right[-1] in ".。?？" else right + say("stop", language)
    sentence = say("wrong_choice", language, letter=letters[options.index(right)], text=text)
    return Judged(passed=False, rating="again", sentence=sentence)


def judge_number(given: str, card: Card, language: str) -> Judged:
    """A number, in the asked unit where it has none: right within the card's tolerance of the number in its answer,
    as it is printed or as it is computed."""
    predict = card.predict
    unit = asked_unit(predict)
    value = read_number(given, unit, language, example=_example(unit))
    truths = [read_number(predict.says, unit, language)]
    truths += [check.value for check in card.verify if check.says == predict.says]
    passed = any(abs(value - truth) <= (predict.tolerance + 1e-9) * abs(truth) for truth in truths)
    words = {"says": predict.says, "given": _as_given(given, value, unit)}
    if passed:
        return Judged(passed=True, rating="good", sentence=say("right_number", language, **words) + why(card, language))
    sentence = say("wrong_number", language, **words, off=how_far_off(value, truths[0], language))
    return Judged(passed=False, rating="again", sentence=sentence + why(card, language))


def why(card: Card, language: str) -> str:
    """How the number comes about, behind a space: as the card computes it, else what the longer answer says of it.

    "" where the short answer has the number, which stands below in any case.
    """
    says, between = card.predict.says, say("between", language)
    if card.predict.how:
        return between + say("worked_out", language, how=card.predict.how, says=says)
    if stands_in(says, card.answer.in_(language)) or not card.longer:
        return ""
    told = re.sub(r"[*`]", "", " ".join(card.longer.in_(language).split()))
    sentences = [one for one in re.split(r"(?<=[.!?]) |(?<=[。！？])", told) if stands_in(says, one)]
    return between + sentences[0] if sentences else ""


def asked_unit(predict: Prediction) -> str:
    """The unit in which the number is wanted, as its card prints it; "" for a count."""
    return re.sub(r"^[-0-9.,\s]+", "", predict.says)


def read_number(given: str, unit: str, language: str | None = None, example: str = "12.3 MB") -> float:
    """What was said, in bytes, seconds or as a plain ratio or count. unit: what a number without one is in.

    Understood: "64.2 MB", "1,024", "6.42e7 B", "6.42×10^7", "7/8", full-width digits, 万 and 亿, 字节 and 毫秒.
    """
    said = ABOUT.sub("", unicodedata.normalize("NFKC", given[: LONGEST + 1]).strip()).rstrip(".。!? ").replace("−", "-")
    match = NUMBER.match(said)
    if len(given.strip()) > LONGEST or not match or not re.search(r"\d", match["whole"] or match["decimals"] or ""):
        raise ValueError(say("no_number", language, given=_short(given), example=example))
    rest = said[match.end() :].strip()
    if re.match(r",\s*\d", rest):
        raise ValueError(say("decimal_comma", language, given=_short(given), example=example))
    value, rest = _divided(_value(match), rest)
    if rest[:1].isdigit() or rest[:1] == "/":
        raise ValueError(say("no_number", language, given=_short(given), example=example))
    scale = next((word for word in SCALES if rest.lower().startswith(word)), "")
    spelled = rest[len(scale) :].strip()
    factor = FACTORS[_unit(spelled, unit, language, example)]
    value *= SCALES.get(scale, 1.0) * factor
    if not math.isfinite(value):
        raise ValueError(say("no_number", language, given=_short(given), example=example))
    return value


def how_far_off(value: float, truth: float, language: str) -> str:
    """ "33 % too low", "8 times too high": a share below a factor of two, then times."""
    if truth == 0:
        return say("nothing_to_compare", language)
    ratio = value / truth
    if ratio < 0:
        return say("other_sign", language)
    if ratio == 0 or 0.5 < ratio < 2:
        share = f"{_digits(abs(ratio - 1) * 100)} %"
        return say("percent_high" if ratio > 1 else "percent_low", language, share=share)
    times = _digits(max(ratio, 1 / ratio))
    return say("times_high" if ratio > 1 else "times_low", language, times=times)


def _value(match: re.Match) -> float:
    number = re.sub(r"[, _]", "", match["whole"] or "0") + (match["decimals"] or "")
    power = int((match["power"] or "0")[:6]) + int((match["tens"] or "0")[:6])
    try:
        return float(f"{match['sign']}{number}e{power}")
    except OverflowError:
        return math.inf


def _divided(value: float, rest: str) -> tuple[float, str]:
    """A fraction such as 7/8: the value and what stands after it."""
    match = re.match(r"/\s*(\d{1,12}(?:\.\d+)?)\s*", rest)
    if not match or not float(match[1]):
        return value, rest
    return value / float(match[1]), rest[match.end() :]


def _unit(spelled: str, asked: str, language: str, example: str) -> str:
    """The unit as UNITS knows it; the asked one where nothing is spelled. Refuses another kind, and bits."""
    if not spelled:
        return asked
    lower = {unit.lower(): unit for units in KINDS.values() for unit in units}
    found = SPOKEN.get(spelled.lower(), spelled if spelled in FACTORS else lower.get(spelled.lower()))
    if re.fullmatch(r"[KMGT]b(it)?s?(/s)?|[kMGT]?bits?(/s)?|[kKMGT]?bps", spelled):
        raise ValueError(say("bits", language, unit=spelled, example=example))
    if found is None:
        raise ValueError(say("unknown_unit", language, unit=_short(spelled), example=example))
    if kind_of(found) != kind_of(asked):
        said = (
            say("other_kind", language, unit=spelled, asked=asked)
            if asked
            else say("no_unit_wanted", language, unit=spelled)
        )
        raise ValueError(said)
    return found


def kind_of(unit: str) -> str:
    """ "bytes", "time", "rate" or "plain"."""
    unit = SPOKEN.get(unit, unit)
    return next(kind for kind, units in KINDS.items() if unit in units)


def _example(unit: str) -> str:
    return f"12.3 {unit}" if unit else "1,234"


def _as_given(given: str, value: float, unit: str) -> str:
    """What was said, and what it is in the asked unit where it was said in another way."""
    said = _short(given.strip())
    inside = f"{_digits(value / FACTORS[unit])} {unit}".strip()
    if re.fullmatch(r"[+-]?[0-9.,]+", said):
        return f"{said} {unit}".strip()
    return said if said.endswith(unit) or not unit else f"{said} ({inside})"


def _digits(value: float) -> str:
    """Three digits that count, with commas and without an exponent as far as a person reads them."""
    if value == 0 or not 1e-4 <= abs(value) < 1e12:
        return f"{value:.3g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{round(value, 2 - math.floor(math.log10(abs(value)))):,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _short(text: str) -> str:
    return text if len(text) <= 30 else text[:29] + "…"
