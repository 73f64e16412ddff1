"""Provides every text that a person reads, in each language of the course. Needs no torch.

FOUND = Words(en="found {n} card{n:?s}", zh="找到 {n} 张卡片")    FOUND.in_("zh"), FOUND.format(n=4), f"{FOUND}"
words = book("clock")                         the texts in clock.yaml of this folder, name -> {en, zh}
words("up"), words("minutes", n=5)            a text in the learner's language
words["up"]                                   a text in all languages, as Words
language()                                    RANKS_LANGUAGE, else what `make course LANGUAGE=zh` stored

LANGUAGES maps "en" and "zh" to the languages' names. `use_language` is a context with another language,
`store_language` stores the learner's choice, and `is_language_chosen` says whether there is one.
"""

from helpers.learner.words.text import (
    LANGUAGES,
    Words,
    book,
    is_language_chosen,
    language,
    store_language,
    use_language,
)

__all__ = ["LANGUAGES", "Words", "book", "is_language_chosen", "language", "store_language", "use_language"]
