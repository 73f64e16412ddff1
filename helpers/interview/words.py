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
    "colon": (": ", "："),
    "skipped": ("skipped", "跳过"),
    "right_choice": ("Right.", "答对了。"),
    "wrong_choice": ("Not this one. Right is {letter}) {text}", "不对。正确答案是 {letter}) {text}"),
    "right_number": ("Right: it is {says}, you said {given}.", "答对了：正确值是 {says}，你答的是 {given}。"),
    "wrong_number": (
        "Not yet: it is {says}, you said {given}, {off}.",
        "不对：正确值是 {says}，你答的是 {given}，{off}。",
    ),
    "percent_high": ("{share} too high", "高了 {share}"),
    "percent_low": ("{share} too low", "低了 {share}"),
    "times_high": ("{times} times too large", "是正确值的 {times} 倍"),
    "times_low": ("{times} times too small", "只有正确值的 1/{times}"),
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
        "{given!r} 不是选项：请输入一个字母：{letters}。",
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
    "junior": ("junior", "初级"),
    "senior": ("senior", "高级"),
    "staff": ("staff", "资深"),
    "is_new": ("new", "新卡片"),
    "place": ("{number} of {total}", "第 {number} / {total} 题"),
    "welcome": (
        "Questions in this sitting: {count}. Answer aloud, as you would in the interview. ? explains, q ends.",
        "这一轮共 {count} 题。请像面试时那样说出声来。输入 ? 看说明，q 结束。",
    ),
    "nothing_due": (
        "Nothing is due now and nothing is new. Come back later, choose another topic, or add --ahead.",
        "现在没有到期的卡片，也没有新卡片。可以晚些再来、换一个主题，或加上 --ahead 提前复习。",
    ),
    "ask_unfold": ("Say your answer, then press Enter to see ours:", "先说出你的答案，再按回车看参考答案："),
    "ask_rating": (
        "How was it? 1 again, 2 hard, 3 good, 4 easy (m: the longer answer):",
        "答得怎么样？1 忘了，2 吃力，3 想起来了，4 很轻松（m 看详细回答）：",
    ),
    "ask_letter": ("Your choice, a to {last}:", "你的选择（a 到 {last}）："),
    "ask_number": ("Your number, in {unit}:", "你的数字（单位 {unit}）："),
    "ask_count": ("Your number:", "你的数字："),
    "ask_next": ("Enter for the next card (m: the longer answer):", "按回车看下一题（m 看详细回答）："),
    "help": (
        "Folded card: answer aloud, press Enter, compare, then rate yourself: 1 again (not known), 2 hard, 3 good, "
        "4 easy. The rating decides when the card comes back.\n\n"
        "Choice: one letter. Number: such as 64.2, 64.2 MB, 61.2 MiB or 6.42e7 B; without a unit it is in the one "
        "asked for; close is right, each card says how close.\n\n"
        "m: the longer answer, once the short one is shown. s: skip this card. q or Ctrl-D: end, with a summary.",
        "问答卡片：先说出答案，按回车对照，再给自己打分：1 忘了，2 吃力，3 想起来了，4 很轻松。"
        "评分决定这张卡片什么时候再出现。\n\n"
        "选择题：输入一个字母。估数题：例如 64.2、64.2 MB、61.2 MiB 或 6.42e7 B；不写单位就按题目的单位算；"
        "接近即算对，允许的误差每张卡片不同。\n\n"
        "m：看过简短答案后显示详细回答。s：跳过这张卡片。q 或 Ctrl-D：结束并显示小结。",
    ),
    "no_longer": ("This card has no longer answer.", "这张卡片没有更详细的回答。"),
    "shown_by": ("Shown by: {place}", "出处：{place}"),
    "summary": ("Asked {asked}, right {right}.", "共答 {asked} 题，答对 {right} 题。"),
    "summary_nothing": ("No question was answered.", "这一轮没有作答。"),
    "summary_due": ("Due within a day, in all topics: {count}.", "一天之内到期的卡片（所有主题）：{count} 张。"),
    "summary_weakest": ("Weakest topic: {topic}.", "最薄弱的主题：{topic}。"),
    "topic": ("topic", "主题"),
    "cards": ("cards", "卡片"),
    "new": ("new", "新"),
    "due": ("due", "到期"),
    "all": ("all", "合计"),
    "exported": (
        "Notes written to {path}: {count}. Import it in Anki; a later import updates the cards.",
        "已把 {count} 张卡片写入 {path}。在 Anki 里导入即可；以后再导入会更新卡片。",
    ),
    "no_file": ("This could not be read or written: {reason}.", "文件无法读写：{reason}。"),
    "one_level": (
        "A mock interview has one level: choose one of {known}.",
        "模拟面试只能选一个级别：{known}。",
    ),
    "usage": ("usage: ", "用法："),
    "bad_arguments": (
        "python -m helpers quiz: {message}. Try --help.",
        "看不懂参数：{given}。请用 --help 查看用法。",
    ),
    "about": (
        "Interview questions, asked again when you are about to forget them.",
        "面试题练习：在你快要忘记的时候再问一次。",
    ),
    "which_cards": ("which cards, and how", "问哪些，怎么问"),
    "help_topic": ("only these topics (--list shows all)", "只问这些主题（--list 列出全部）"),
    "help_level": ("junior, senior or staff", "级别：junior（初级）、senior（高级）、staff（资深）"),
    "help_form": (
        "how they are asked; mixed asks in another form each time",
        "题型：choice 选择，number 估数，folded 问答；mixed 每次换一种",
    ),
    "help_count": ("how many questions, or all (default {count})", "题数，或 all 表示不限（默认 {count}）"),
    "help_ahead": ("also cards that are not due yet", "也问还没到期的卡片"),
    "help_lang": ("en or zh (Chinese)", "语言：en 英文，zh 中文"),
    "instead": ("instead of a quiz", "不做练习，而是"),
    "help_list": ("the topics, with cards, new ones and due ones", "列出主题及卡片数、新卡片数、到期数"),
    "help_mock": ("a mock interview: 5 cards and 1 drill against the clock", "模拟面试：5 张卡片加 1 道限时手写题"),
    "help_drill": ("write a piece of code against the clock; alone it lists them", "限时手写代码；不给编号则列出全部"),
    "help_anki": (
        "write the cards as an Anki deck (in both languages, or in --lang)",
        "导出为 Anki 牌组（默认中英双语，或用 --lang 指定）",
    ),
    "more_later": (
        "The longer answer comes once you have answered. s skips this card.",
        "先作答，才能看详细回答。输入 s 可以跳过。",
    ),
    "no_drill": (
        "There is no drill {given!r}: the drills are {known}.",
        "没有手写题 {given!r}：现有 {known}。",
    ),
    "drill_how": (
        "Start one with: python -m helpers quiz --drill {key}",
        "开始一题：python -m helpers quiz --lang zh --drill {key}",
    ),
    "drill_over": ("Time used: {time}.", "用时 {time}。"),
    "mock_welcome": (
        "A mock interview: 5 cards, {each} each, then a drill, {drill}, {limit}. Speak your answers. "
        "The clock tells, it never cuts you off. s skips, q ends and shows the sheet.",
        "模拟面试：5 张卡片，每张 {each}；然后一道手写题「{drill}」，{limit}。请出声回答。"
        "超时只提示，不会打断。s 跳过，q 结束并显示评分表。",
    ),
    "ask_begin": ("Press Enter when you are ready:", "准备好了就按回车："),
    "mock_time": ("Your time: {used} of {limit}.", "用时 {used}，限时 {limit}。"),
    "mock_over": ("Your time: {used}, more than the {limit}.", "用时 {used}，超过了限时 {limit}。"),
    "ask_mock_rating": (
        "How was it? 1 again, 2 hard, 3 good, 4 easy:",
        "答得怎么样？1 忘了，2 吃力，3 想起来了，4 很轻松：",
    ),
    "ask_check": ("Enter checks {path} (s: give up):", "按回车检查 {path}（s 放弃）："),
    "checking": ("Checking on live ranks.", "正在用真实的 rank 检查。"),
    "no_answer_file": ("{path} cannot be read: {reason}.", "{path} 无法读取：{reason}。"),
    "answer_fails": ("{path} line {line} fails: {reason}", "{path} 第 {line} 行出错：{reason}"),
    "no_name": ("{path} defines no {name}: write it under that name.", "{path} 里没有定义 {name}：请用这个名字。"),
    "stub_laid": (
        "{path} is laid in this folder: write your answer there in your editor, save, then come back.",
        "已在当前目录生成 {path}：请在编辑器里作答并保存，然后回到这里。",
    ),
    "stub_there": (
        "{path} is in this folder already and stays as it is: go on there.",
        "当前目录里已有 {path}，没有改动它：请继续在里面作答。",
    ),
    "stub_failed": (
        "{path} cannot be laid here ({reason}): give the name of a file of yours that begins like this:",
        "无法在这里生成 {path}（{reason}）：请自己建一个文件，开头如下，再输入它的文件名：",
    ),
    "ask_save": (
        "Keep it as a file? A name such as sheet.md, or Enter for no:",
        "要存成文件吗？输入文件名，如 sheet.md；直接回车则不存：",
    ),
    "saved": ("Kept as {path}.", "已存为 {path}。"),
    "help_help": ("this text", "显示本说明"),
}


def check_language(language: str) -> None:
    """Raise ValueError for a language that the cards do not have."""
    if language not in LANGUAGES:
        raise ValueError(f'language is {language!r}: there are "en" (English) and "zh" (简体中文)')


def say(key: str, language: str, /, **values: object) -> str:
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
