"""All twelve are known, and six of them are asked for: what else stands in the dict does no harm."""

TASK = "10.patients"
CAUSES = """29 a mean of unequal means
20 a slow write inside the loop
14 unequal numbers of steps
32 a graph that is kept
33 a partial gradient that nobody adds up
21 a sum in place of a mean
21 an order that is never drawn anew
16 an optimizer of other tensors
13 one seed for all ranks
24 a process that leaves without an exception
34 two groups in two orders
33 a message per micro-batch""".splitlines()
ALONE = {2: 2, 3: 1, 10: 1, 11: 2}


def diagnoses():
    answers = {}
    for number, text in enumerate(CAUSES, start=1):
        line, _, cause = text.partition(" ")
        answers[f"patient_{number:02}"] = (ALONE.get(number, "all"), int(line), cause)
    return 7, answers
