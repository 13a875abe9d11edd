"""Facts a small model can hold, and lists given in the prompt that it must read."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from .exchange import Exchange, Thought, plain
from .words import (
    ANIMALS,
    CAPITALS,
    FRUITS,
    ITEMS,
    MONTHS,
    OPPOSITES,
    TOPICS,
    VEGETABLES,
    WEEKDAYS,
    joined,
    made_up,
    person,
    thing,
)

_COUNTRIES = tuple(CAPITALS)


def _fact(kind: str, user: str, answer: str, recall: str, plan: str) -> Exchange:
    thought = Thought(
        work=recall,
        plan=plan,
        check="I check it: nothing speaks against it.",
        confirm=f"Once more: {recall}",
    )
    return plain(kind, f"{kind} {user}", user, answer, thought)


def capital(rng: Random) -> Exchange:
    country = rng.choice(_COUNTRIES)
    city = CAPITALS[country]
    country = f"the {country}" if country.startswith(("United", "Czech")) else country
    if rng.random() < 0.7:
        user = rng.choice(
            (
                f"What is the capital of {country}?",
                f"Capital of {country}?",
                f"Which city is the capital of {country}?",
                f"Tell me the capital of {country}.",
                f"Name the capital of {country}.",
                f"what's the capital of {country}",
            )
        )
        answer = f"The capital of {country} is {city}."
    else:
        user = rng.choice(
            (
                f"{city} is the capital of which country?",
                f"Which country has the capital {city}?",
                f"In which country is {city}?",
            )
        )
        answer = f"{city} is the capital of {country}."
    return _fact(
        "capital",
        user,
        answer,
        f"{country}: {city}.",
        "A question about a country and its capital.",
    )


def neighbour_in_cycle(rng: Random) -> Exchange:
    names, what = rng.choice(((WEEKDAYS, "day"), (MONTHS, "month")))
    index, after = rng.randrange(len(names)), rng.random() < 0.6
    word = "after" if after else "before"
    result = names[(index + (1 if after else -1)) % len(names)]
    user = rng.choice(
        (
            f"Which {what} comes {word} {names[index]}?",
            f"What {what} is {word} {names[index]}?",
            f"Name the {what} {word} {names[index]}.",
        )
    )
    return _fact(
        "calendar",
        user,
        f"{result} comes {word} {names[index]}.",
        f"{word.capitalize()} {names[index]} comes {result}.",
        f"A question about the next {what}.",
    )


def whole_cycle(rng: Random) -> Exchange:
    names, what = rng.choice(((WEEKDAYS, "days of the week"), (MONTHS, "months of the year")))
    user = rng.choice((f"List the {what}.", f"Name the {what}.", f"What are the {what}?"))
    return _fact(
        "calendar_list",
        user,
        ", ".join(names),
        f"From {names[0]} to {names[-1]}.",
        f"There are {len(names)} of them.",
    )


def opposite(rng: Random) -> Exchange:
    pairs = [*OPPOSITES.items(), *((b, a) for a, b in OPPOSITES.items())]
    word, other = rng.choice(pairs)
    user = rng.choice(
        (
            f"What is the opposite of {word}?",
            f"Opposite of {word}?",
            f"Give the opposite of {word}.",
        )
    )
    return _fact(
        "opposite",
        user,
        f"The opposite of {word} is {other}.",
        f"{word} and {other} are opposites.",
        "A question about opposites.",
    )


def category(rng: Random) -> Exchange:
    names, what = rng.choice(
        ((FRUITS, "a fruit"), (VEGETABLES, "a vegetable"), (ANIMALS, "an animal"))
    )
    name = rng.choice(names)
    user = rng.choice((f"What kind of thing is a {name}?", f"What is a {name}?"))
    return _fact(
        "category", user, f"A {name} is {what}.", f"{name}: {what}.", "A question about a thing."
    )


def table_lookup(rng: Random) -> Exchange:
    what = rng.choice(("points", "euros", "books", "age", "room", "score", "price"))
    people = what not in ("price",)
    keys: list[str] = []
    while len(keys) < rng.randint(3, 6):
        key = person(rng) if people else thing(rng)
        if key not in keys:
            keys.append(key)
    values = rng.sample(range(2, 99), len(keys))
    index = rng.randrange(len(keys))
    key, value = keys[index], values[index]
    layout = rng.choice(("lines", "commas", "json"))
    if layout == "lines":
        table = "\n".join(f"{k}: {v}" for k, v in zip(keys, values, strict=True))
    elif layout == "commas":
        table = ", ".join(f"{k} {v}" for k, v in zip(keys, values, strict=True)) + "."
    else:
        table = json.dumps(dict(zip(keys, values, strict=True)))
    backwards = rng.random() < 0.3
    if rng.random() < 0.12:
        missing = person(rng) if people else thing(rng)
        if missing not in keys:
            question = f"What is the {what} of {missing}?"
            thought = Thought(
                work=f"The list has {joined(keys)}, but not {missing}.",
                plan=f"I look for {missing} in the list.",
                check=f"Check: {len(keys)} entries, none is {missing}.",
                confirm="I do not guess.",
            )
            answer = f"The list has no {missing}."
            return plain("lookup_missing", f"miss {table}", f"{table}\n{question}", answer, thought)
    question = f"Who has {value}?" if backwards and people else f"What is the {what} of {key}?"
    answer = f"{key} has {value}." if backwards and people else f"The {what} of {key} is {value}."
    thought = Thought(
        work=f"The list says {key} {value}.",
        plan=f"I look in the list of {len(keys)} entries.",
        check=f"Check: {key} is entry {index + 1} of the list.",
        confirm=f"So {key} and {value} belong together.",
    )
    before = f"Here is a list ({what}):\n{table}\n{question}"
    after = f"{question}\n{table}"
    user = before if rng.random() < 0.7 else after
    return plain("lookup", f"look {key} {value} {table}", user, answer, thought)


def membership(rng: Random) -> Exchange:
    listed = rng.sample(ITEMS, rng.randint(3, 6))
    inside = rng.random() < 0.5
    word = rng.choice(listed) if inside else rng.choice([i for i in ITEMS if i not in listed])
    user = rng.choice(
        (
            f"Is {word} in this list: {', '.join(listed)}?",
            f"Does the list {', '.join(listed)} hold {word}?",
        )
    )
    thought = Thought(
        work=f"{word} is {'in' if inside else 'not in'} the list.",
        plan=f"I look for {word} among {len(listed)} words.",
        check=f"Check: {', '.join(listed)}.",
        confirm=f"So the answer is {'yes' if inside else 'no'}.",
    )
    verdict = f"Yes, {word} is in the list." if inside else f"No, {word} is not in the list."
    return plain("membership", f"in {word} {listed}", user, verdict, thought)


def as_json(rng: Random) -> Exchange:
    fields = rng.sample(("name", "age", "city", "color", "count"), rng.randint(2, 3))
    makers: dict[str, Callable[[], Any]] = {
        "name": lambda: person(rng),
        "age": lambda: rng.randint(3, 98),
        "city": lambda: made_up(rng).capitalize(),
        "color": lambda: rng.choice(("red", "blue", "green")),
        "count": lambda: rng.randint(1, 999),
    }
    record = {name: makers[name]() for name in fields}
    stated = ", ".join(f"{k} {v}" for k, v in record.items())
    user = rng.choice((f"Write as JSON: {stated}.", f"Give me JSON for {stated}."))
    thought = Thought(
        work=f"The keys are {joined(fields)}.",
        plan="Text gets quotes, numbers do not.",
        check=f"Check: {len(fields)} keys.",
        confirm=f"The first key is {fields[0]}.",
    )
    return plain("as_json", f"json {stated}", user, json.dumps(record), thought)


def unknown(rng: Random) -> Exchange:
    topic = rng.choice(TOPICS) if rng.random() < 0.6 else thing(rng)
    user = rng.choice(
        (
            f"Explain {topic} to me.",
            f"Write a poem about {topic}.",
            f"Tell me a story about {topic}.",
            f"What do you think about {topic}?",
            f"Who invented {topic}?",
            f"Tell me about {topic}.",
            f"Write a long text about {topic}.",
            f"What is the history of {topic}?",
            f"Why is {topic} so popular?",
            f"How does {topic} work?",
            f"Tell me a joke about {topic}.",
        )
    )
    thought = Thought(
        work=f"I know too little about {topic}.",
        plan=f"The user asks about {topic}.",
        check="It is no sum, no list, no capital and no tool.",
        confirm="It is better to say so than to guess.",
    )
    answer = f"I am only a small model, and I do not know enough about {topic}."
    return plain("unknown", f"unknown {user}", user, answer, thought)


TASKS: dict[Callable[[Random], Exchange], int] = {
    capital: 6,
    neighbour_in_cycle: 2,
    whole_cycle: 1,
    opposite: 2,
    category: 1,
    table_lookup: 7,
    membership: 2,
    as_json: 3,
    unknown: 3,
}
