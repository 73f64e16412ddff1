"""What the quiz says, in English and Chinese: one place, so that neither language lacks a sentence."""

from __future__ import annotations

from datetime import timedelta

LANGUAGES = ("en", "zh")
RATINGS = ("again", "hard", "good", "easy")  # in the order of fsrs.Rating, from 1

WORDS: dict[str, tuple[str, str]] = {
    "again": ("again", "忘了"),
    "hard": ("hard", "吃力"),
    "good": ("good", "想起来了"),
    "easy": ("easy", "很轻松"),
    "mixed": ("mixed", "混合"),
    "folded": ("folded", "问答"),
    "choice": ("choice", "选择"),
    "number": ("number", "估数"),
    "stop": (".", "。"),
    "right_choice": ("Right.", "答对了。"),
    "wrong_choice": ("Not this one. Right is {letter}) {text}", "不对。正确答案是 {letter}) {text}"),
    "right_number": ("Right: it is {says}, you said {given}.", "答对了：正确值是 {says}，你答的是 {given}。"),
    "wrong_number": (
        "Not yet: it is {says}, you said {given}, {off}.",
        "不对：正确值是 {says}，你答的是 {given}，{off}。",
    ),
    "percent_high": ("{share} too high", "高了 {share}"),
    "percent_low": ("{share} too low", "低了 {share}"),
    "times_high": ("{times} times too high", "是正确值的 {times} 倍"),
    "times_low": ("{times} times too low", "只有正确值的 1/{times}"),
    "other_sign": ("with the wrong sign", "正负号反了"),
    "nothing_to_compare": ("and the right one is zero", "而正确值是零"),
    "rated": ("Noted as {rating}.", "记为「{rating}」。"),
    "returns": ("It comes back in {span}.", "{span}后再问。"),
    "minutes": ("{count} min", "{count} 分钟"),
    "hours": ("{count} h", "{count} 小时"),
    "day": ("1 day", "1 天"),
    "days": ("{count} days", "{count} 天"),
    "bad_letter": (
        "{given!r} is none of the options: give one letter, {letters}.",
        "{given!r} 不是选项：请输入一个字母，{letters}。",
    ),
    "bad_rating": (
        "{given!r} is no rating: give again, hard, good or easy (or 1 to 4).",
        "{given!r} 不是评分：请输入 again、hard、good、easy（忘了、吃力、想起来了、很轻松）或 1 到 4。",
    ),
    "no_number": (
        "{given!r} cannot be read as a number: write {example}.",
        "读不懂数字 {given!r}：请写成 {example} 这样。",
    ),
    "decimal_comma": (
        "In {given!r} the comma does not part thousands: write a point before decimals, as in {example}.",
        "{given!r} 里的逗号不是千位分隔符：小数请用小数点，例如 {example}。",
    ),
    "unknown_unit": (
        "{unit!r} is no unit that is known here: write {example}, or the number alone.",
        "不认识单位 {unit!r}：请写成 {example}，或只写数字。",
    ),
    "bits": (
        "{unit!r} means bits: write a capital B for bytes, as in {example}.",
        "{unit!r} 表示比特：字节请用大写 B，例如 {example}。",
    ),
    "other_kind": (
        "{unit!r} does not measure what is asked: the answer is wanted in {asked}.",
        "单位 {unit!r} 与问题不符：答案的单位应是 {asked}。",
    ),
    "no_unit_wanted": ("a number without a unit", "不带单位的数"),
    "over": ("Nothing is asked: the sitting is over.", "没有待答的题目：这一轮已经结束。"),
    "damaged": (
        "Some lines of your progress file could not be read; they are copied to {aside}, and the quiz goes on "
        "with the others.",
        "进度文件里有几行读不出来，已另存到 {aside}；练习照常进行，其余记录都在。",
    ),
    "unreadable": (
        "Your progress file {path} cannot be read ({reason}): the quiz goes on as if it were empty.",
        "进度文件 {path} 无法读取（{reason}）：练习照常进行，暂按没有记录处理。",
    ),
    "not_copied": (
        "Some lines of your progress file {path} could not be read, nor copied ({reason}). The file is as it was.",
        "进度文件 {path} 里有几行读不出来，也没能另存（{reason}）；原文件没有改动。",
    ),
    "not_written": (
        "Your answers cannot be written to {path} ({reason}): the quiz goes on and keeps them in memory.",
        "答题记录无法写入 {path}（{reason}）：练习照常进行，记录暂存在内存里。",
    ),
    "home": ("your home", "主目录"),
    "no_topic": (
        "There is no topic {given!r}: the topics are {known}.",
        "没有主题 {given!r}：现有主题为 {known}。",
    ),
    "no_level": (
        "There is no level {given!r}: the levels are {known}.",
        "没有级别 {given!r}：级别有 {known}。",
    ),
    "no_form": (
        "There is no form {given!r}: the forms are {known}.",
        "没有题型 {given!r}：题型有 {known}。",
    ),
    "no_cards": (
        "No card matches {wanted}: the cards there are, by topic: {known}.",
        "没有符合条件的卡片（{wanted}）：各主题现有 {known}。",
    ),
    "bad_count": (
        "count is {given!r}: give how many cards to ask, 1 or more.",
        "题数 {given!r} 不对：请给一个不小于 1 的整数。",
    ),
    "usual_mistake": ("Usual mistake", "常见错误"),
    "follow_ups": ("They may ask next", "可能的追问"),
    "deck_about": (
        "Interview cards of Rank by Rank. A second import updates them and keeps your schedule.",
        "Rank by Rank 的面试卡片。重新导入会更新卡片，不会重复，也不影响复习进度。",
    ),
    "nothing_to_export": ("There is no card to export.", "没有可导出的卡片。"),
    "not_apkg": (
        "{path} is no name for an Anki deck: it must end in .apkg, such as interview.apkg.",
        "{path} 不能作为 Anki 牌组的文件名：请以 .apkg 结尾，例如 interview.apkg。",
    ),
    "no_folder": (
        "There is no folder {path}: make it first, or choose another.",
        "没有文件夹 {path}：请先创建，或换一个位置。",
    ),
    "not_ours": (
        "{path} is there already and is no deck of this course: it is left as it is, choose another name.",
        "{path} 已经存在，而且不是本课程导出的牌组：没有改动它，请换一个文件名。",
    ),
}


def check_language(language: str) -> None:
    """Raise ValueError for a language that the cards do not have."""
    if language not in LANGUAGES:
        raise ValueError(f'language is {language!r}: there are "en" (English) and "zh" (简体中文)')


def say(key: str, language: str, **values: object) -> str:
    """One sentence or word of the interface."""
    return WORDS[key][LANGUAGES.index(language)].format(**values)


def say_span(span: timedelta, language: str) -> str:
    """How long until a card comes back, rounded: "10 min", "3 days"."""
    minutes = max(1, round(span.total_seconds() / 60))
    days = round(span.total_seconds() / 86400)
    if minutes < 60:
        return say("minutes", language, count=minutes)
    if minutes < 60 * 20:
        return say("hours", language, count=round(minutes / 60))
    return say("day" if days == 1 else "days", language, count=days)
