"""A grammar that writes a small text about ranks. It is ours, so it may be shipped, and any length of it can be made.

A symbol in capitals is replaced by one of its lines until none is left. Sums are right ("4 and 3 make 7"), so there is
more to learn than spelling. Only `random.Random(seed).random()` is used: Python keeps its sequence between versions.
"""

import random
import re
import string

ALPHABET = "\n " + string.ascii_lowercase + string.ascii_uppercase + string.digits + ".,:;"  # 68 characters

GRAMMAR = {
    "STORY": [
        "On DAY PERSON starts NUMBER ranks. SENTENCE SENTENCE SENTENCE\n",
        "SENTENCE SENTENCE\n",
        "PERSON asks: why does the THING VERB; Because the THING is ADJECTIVE.\n",
        "PERSON asks: which rank VERBs; Rank NUMBER does.\n",
        "PERSON asks: how many THINGs VERB; SUM.\n",
    ],
    "SENTENCE": [
        "Rank NUMBER sends its THING to rank NUMBER.",
        "The ring VERBs, and every rank VERBs.",
        "Rank NUMBER VERBs while the others VERB.",
        "If one rank VERBs, then the ADJECTIVE THING VERBs; nobody else VERBs.",
        "PERSON counts the THINGs: SUM.",
        "The THING of rank NUMBER is ADJECTIVE.",
    ],
    "THING": ["gradient", "bucket", "message", "weight", "tensor", "shard", "key", "value", "buffer"],
    "VERB": ["wait", "listen", "answer", "arrive", "overlap", "return", "break", "join", "zoom"],
    "ADJECTIVE": ["late", "small", "exact", "heavy", "quick", "frozen", "equal"],
    "PERSON": ["Ada", "Bo", "Chen", "Dai", "Emi", "Femi", "Gus", "Hui", "Ines", "Jun", "Kai", "Lin", "Mei"]
    + ["Nia", "Oto", "Pia", "Qi", "Rui", "Sam", "Tao", "Uma", "Vik", "Wen", "Xia", "Yan", "Zoe"],
    "DAY": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
}
_SYMBOL = re.compile("SUM|NUMBER|" + "|".join(GRAMMAR))


def write_text(num_characters: int, seed: int = 0) -> str:
    """The first `num_characters` characters of the endless text with this seed. ValueError for fewer than 1."""
    if num_characters < 1:
        raise ValueError(f"a text of {num_characters} characters: expected 1 or more")
    dice, stories, length = random.Random(seed), [], 0
    while length < num_characters:
        stories.append(_expand("STORY", dice))
        length += len(stories[-1])
    return "".join(stories)[:num_characters]


def _expand(symbol: str, dice: random.Random) -> str:
    if symbol == "SUM":
        a, b = _roll(10, dice), _roll(10, dice)
        return f"{a} and {b} make {a + b}"
    if symbol == "NUMBER":
        return str(_roll(10, dice))
    line = GRAMMAR[symbol][_roll(len(GRAMMAR[symbol]), dice)]
    return _SYMBOL.sub(lambda match: _expand(match[0], dice), line)


def _roll(sides: int, dice: random.Random) -> int:
    return int(dice.random() * sides)
