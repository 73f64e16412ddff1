"""Reads and judges an answer to an interview card: a letter, a number with its unit, or the learner's own rating.

The quiz, the rounds and the guesses of the chapters use it. Every function raises ValueError, a sentence in the given
language, where the answer cannot be read. `words(key, language, **values)` is such a sentence.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import asdict, dataclass

from helpers.interview.cards import RATINGS, UNITS, Card, Prediction, has_number, words

LONGEST = 60  # characters; a longer text is refused as a number
LETTERS = "abcde"  # of the options of a multiple choice
BYTES = ("B", "kB", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")
KINDS = {  # kind of a quantity -> its units
    "bytes": BYTES,
    "rate": tuple(f"{unit}/s" for unit in BYTES),
    "time": ("s", "ms", "µs", "us", "min", "h"),
    "plain": ("", "x", "%"),  # a count, a ratio, a share
}
SPOKEN = {  # other names of units -> their symbols; Chinese measure words, as in 8 张, are counts and have the unit ""
    "byte": "B", "bytes": "B", "字节": "B", "千字节": "kB", "兆字节": "MB", "吉字节": "GB", "太字节": "TB",
    "sec": "s", "second": "s", "seconds": "s", "秒": "s", "毫秒": "ms", "微秒": "µs", "μs": "µs", "minutes": "min",
    "分钟": "min", "分": "min", "hour": "h", "hours": "h", "小时": "h", "倍": "x", "times": "x", "×": "x",
    "percent": "%", "个": "", "次": "", "条": "", "步": "", "张": "",
}  # fmt: skip
# What a unit is in bytes, seconds or as a ratio, and what a word after a number multiplies it by.
FACTORS = UNITS | {f"{unit}/s": UNITS[unit] for unit in BYTES}
SCALES = {"万": 1e4, "亿": 1e8, "thousand": 1e3, "million": 1e6, "billion": 1e9}
# A sign, digits with or without separators (comma, space, underscore), decimals, an exponent, and "× 10^7".
NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d{1,3}(?:[, _]\d{3})+(?!\d)|\d+)?(?P<decimals>\.\d*)?(?:[eE](?P<power>[+-]?\d+))?"
    r"(?:\s*[×x*·]\s*10\s*(?:\^|\*\*)\s*(?P<tens>[+-]?\d+))?"
)
ABOUT = re.compile(r"^(?:[~≈=约]|大约|大概|about|approximately)+\s*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """How an answer was judged. rating: "again", "hard", "good" or "easy". sentence: the verdict, for the learner."""

    passed: bool
    rating: str
    sentence: str


def judge_rating(given: str, language: str) -> Judged:
    """Judges the learner's own rating of a card: a word in either language, its first letter, or 1 to 4."""
    typed = unicodedata.normalize("NFKC", given).strip().lower()
    spellings = {name: rating for rating in RATINGS for name in (rating[0], *asdict(words[rating]).values())}
    spellings |= {str(number): rating for number, rating in enumerate(RATINGS, start=1)}
    if typed not in spellings:
        raise ValueError(words("bad_rating", language, given=_short(given)))
    rating = spellings[typed]
    sentence = words("rated", language, rating=words(rating, language))
    return Judged(passed=rating != "again", rating=rating, sentence=sentence)


def judge_choice(given: str, options: tuple[str, ...], right: str, language: str) -> Judged:
    """Judges a letter, "b" or "B)": the right one is rated "good", a wrong one "again". right: the right option's text.

    A digit is refused, because on the next screen a digit is a rating.
    """
    letters = LETTERS[: len(options)]
    typed = unicodedata.normalize("NFKC", given).strip().lower().strip("().")
    if len(typed) != 1 or typed not in letters:
        raise ValueError(words("bad_letter", language, given=_short(given), letters=letters))
    if options[letters.index(typed)] == right:
        return Judged(passed=True, rating="good", sentence=words("right_choice", language))
    text = right if right[-1] in ".。?？" else right + words("stop", language)
    sentence = words("wrong_choice", language, letter=letters[options.index(right)], text=text)
    return Judged(passed=False, rating="again", sentence=sentence)


def judge_number(given: str, card: Card, language: str) -> Judged:
    """Judges a number, which is in the card's unit if it has none.

    It is right within the card's tolerance of the number in the answer, as that is printed or as it is computed.
    """
    predict = card.predict
    unit = asked_unit(predict)
    value = read_number(given, unit, language, example=_example(unit))
    truths = [read_number(predict.says, unit, language)]  # as printed, and below as computed
    truths += [check.value for check in card.verify if check.says == predict.says]
    # 1e-9 is for rounding, so that a guess exactly at the tolerance passes.
    passed = any(abs(value - truth) <= (predict.tolerance + 1e-9) * abs(truth) for truth in truths)
    values = {"says": predict.says, "given": _as_given(given, value, unit)}
    if passed:
        rating, sentence = "good", words("right_number", language, **values)
    else:
        off = how_far_off(value, truths[0], language)
        rating, sentence = "again", words("wrong_number", language, **values, off=off)
    return Judged(passed=passed, rating=rating, sentence=sentence + explanation(card, language))


def explanation(card: Card, language: str) -> str:
    """A space, then how the number is computed: as the card says, else the sentence of the longer answer that has it.

    "" where the short answer has the number, because the short answer is shown below anyway.
    """
    says, between = card.predict.says, words("between", language)
    if card.predict.how:
        return between + words("worked_out", language, how=card.predict.how, says=says)
    if has_number(says, card.answer.in_(language)) or not card.longer:
        return ""
    longer = re.sub(r"[*`]", "", " ".join(card.longer.in_(language).split()))
    sentences = [one for one in re.split(r"(?<=[.!?]) |(?<=[。！？])", longer) if has_number(says, one)]
    return between + sentences[0] if sentences else ""


def asked_unit(predict: Prediction) -> str:
    """The unit in which the number is wanted, as its card prints it; "" for a count."""
    return re.sub(r"^[-0-9.,\s]+", "", predict.says)


def read_number(given: str, unit: str, language: str | None = None, example: str = "12.3 MB") -> float:
    """The value of a typed number, in bytes, seconds or as a plain ratio or count.

    unit: of a number that is typed without one. example: a number to show in an error. Understood: "64.2 MB", "1,024",
    "6.42e7 B", "6.42×10^7", "7/8", full-width digits, 万 and 亿, 字节 and 毫秒.
    """
    # NFKC makes plain digits of full-width ones.
    typed = ABOUT.sub("", unicodedata.normalize("NFKC", given[: LONGEST + 1]).strip())
    typed = typed.rstrip(".。!? ").replace("−", "-")
    match = NUMBER.match(typed)
    if len(given.strip()) > LONGEST or not match or not re.search(r"\d", match["whole"] or match["decimals"] or ""):
        raise ValueError(words("no_number", language, given=_short(given), example=example))
    rest = typed[match.end() :].strip()
    if re.match(r",\s*\d", rest):
        raise ValueError(words("decimal_comma", language, given=_short(given), example=example))
    value, rest = _divided(_value(match), rest)
    if rest[:1].isdigit() or rest[:1] == "/":  # another number follows
        raise ValueError(words("no_number", language, given=_short(given), example=example))
    scale = next((word for word in SCALES if rest.lower().startswith(word)), "")
    spelled = rest[len(scale) :].strip()
    value *= SCALES.get(scale, 1.0) * FACTORS[_unit(spelled, unit, language, example)]
    if not math.isfinite(value):
        raise ValueError(words("no_number", language, given=_short(given), example=example))
    return value


def how_far_off(value: float, truth: float, language: str) -> str:
    """How far a value is from the truth: "33 % too low", or from a factor of two on "8 times too high"."""
    if truth == 0:
        return words("nothing_to_compare", language)
    ratio = value / truth
    if ratio < 0:
        return words("other_sign", language)
    if ratio == 0 or 0.5 < ratio < 2:
        share = f"{_digits(abs(ratio - 1) * 100)} %"
        return words("percent_high" if ratio > 1 else "percent_low", language, share=share)
    times = _digits(max(ratio, 1 / ratio))
    return words("times_high" if ratio > 1 else "times_low", language, times=times)


def _value(match: re.Match) -> float:
    """The number that NUMBER has found, as a float; inf for one that is too large."""
    number = re.sub(r"[, _]", "", match["whole"] or "0") + (match["decimals"] or "")
    power = int((match["power"] or "0")[:6]) + int((match["tens"] or "0")[:6])  # [:6]: int() of many digits is slow
    try:
        return float(f"{match['sign']}{number}e{power}")
    except OverflowError:
        return math.inf


def _divided(value: float, rest: str) -> tuple[float, str]:
    """The value divided by what follows it, as in 7/8, and the rest of the text after that."""
    match = re.match(r"/\s*(\d{1,12}(?:\.\d+)?)\s*", rest)
    if not match or not float(match[1]):
        return value, rest
    return value / float(match[1]), rest[match.end() :]


def _unit(spelled: str, asked: str, language: str, example: str) -> str:
    """The unit as FACTORS knows it, or the asked one if none is typed. Refuses bits and units of another kind."""
    if not spelled:
        return asked
    lower = {unit.lower(): unit for units in KINDS.values() for unit in units}  # "mb" counts as "MB"
    known = SPOKEN.get(spelled.lower(), spelled if spelled in FACTORS else lower.get(spelled.lower()))
    if re.fullmatch(r"[KMGT]b(it)?s?(/s)?|[kMGT]?bits?(/s)?|[kKMGT]?bps", spelled):
        raise ValueError(words("bits", language, unit=spelled, example=example))
    if known is None:
        raise ValueError(words("unknown_unit", language, unit=_short(spelled), example=example))
    if kind_of(known) != kind_of(asked):
        key = "other_kind" if asked else "no_unit_wanted"
        raise ValueError(words(key, language, unit=spelled, asked=asked))
    return known


def kind_of(unit: str) -> str:
    """The kind of a unit: "bytes", "time", "rate" or "plain"."""
    unit = SPOKEN.get(unit, unit)
    return next(kind for kind, units in KINDS.items() if unit in units)


def _example(unit: str) -> str:
    """A number in this unit, for an error."""
    return f"12.3 {unit}" if unit else "1,234"


def _as_given(given: str, value: float, unit: str) -> str:
    """The number as it was typed, with its value in the asked unit if that was typed in another way."""
    typed = _short(given.strip())
    in_unit = f"{_digits(value / FACTORS[unit])} {unit}".strip()
    if re.fullmatch(r"[+-]?[0-9.,]+", typed):
        return f"{typed} {unit}".strip()
    return typed if typed.endswith(unit) or not unit else f"{typed} ({in_unit})"


def _digits(value: float) -> str:
    """Three significant digits, with commas, and without an exponent unless the number is very large or small."""
    if value == 0 or not 1e-4 <= abs(value) < 1e12:
        return f"{value:.3g}"
    decimals = 2 - math.floor(math.log10(abs(value)))  # of three significant digits; negative above 1,000
    text = f"{round(value, decimals):,.{max(0, decimals)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _short(text: str) -> str:
    """A typed text for an error, cut after 30 characters."""
    return text if len(text) <= 30 else text[:29] + "…"
