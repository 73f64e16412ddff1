"""What a person reads, in every language of the course; no torch.

FOUND = Words(en="found {n} card{n:?s}", zh="找到 {n} 张卡片")    FOUND.in_("zh"), FOUND.format(n=4), f"{FOUND}"
say = book("clock")                           what stands in clock.yaml of this folder, name -> {en, zh}
say("up"), say("minutes", n=5), say["up"]     in the language that was chosen; in all of them, as Words
language()                                    RANKS_LANGUAGE, else what `make course LANGUAGE=zh` kept
"""

from helpers.learner.words.book import Book, book
from helpers.learner.words.text import LANGUAGES, Words, keep, language, reading, was_chosen

__all__ = ["LANGUAGES", "Book", "Words", "book", "keep", "language", "reading", "was_chosen"]
