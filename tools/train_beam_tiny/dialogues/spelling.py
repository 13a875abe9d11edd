"""Tasks on words and letters: reversing, counting, sorting, repeating."""

from collections.abc import Callable
from random import Random

from .exchange import Exchange, Thought, plain
from .words import WORDS, joined, made_up, phrase


def _word(rng: Random) -> str:
    word = rng.choice(WORDS) if rng.random() < 0.8 else made_up(rng)
    return word if len(word) <= 7 else word[:6]


def reverse(rng: Random) -> Exchange:
    word = _word(rng)
    back = word[::-1]
    user = rng.choice(
        (
            f"Reverse the word {word}.",
            f"Spell {word} backwards.",
            f'Write "{word}" backwards.',
            f"What is {word} in reverse?",
            f"Reverse: {word}",
        )
    )
    thought = Thought(
        work=f"{word} is {'-'.join(word)}. Backwards: {'-'.join(back)}.",
        plan="I spell the word and read the letters from the end.",
        check=f"Check: first letter {back[0]}, last letter {back[-1]}, {len(word)} letters.",
        confirm=f"Read backwards again, {'-'.join(back)} is {'-'.join(word)}.",
        needed=True,
    )
    return plain("reverse", f"reverse {word}", user, back, thought)


def spell(rng: Random) -> Exchange:
    word = _word(rng)
    user = rng.choice((f"Spell the word {word}.", f"Spell {word}.", f"How do you spell {word}?"))
    spelled = "-".join(word)
    thought = Thought(
        work="Letter by letter.",
        plan=f"The word is {word}.",
        check=f"Check: {len(word)} letters.",
        confirm=f"It starts with {word[0]} and ends with {word[-1]}.",
    )
    return plain("spell", f"spell {word}", user, spelled, thought)


def word_length(rng: Random) -> Exchange:
    word = _word(rng)
    user = rng.choice(
        (
            f"How many letters are in {word}?",
            f"How many letters does the word {word} have?",
            f'Count the letters in "{word}".',
        )
    )
    work = " ".join(f"{letter}{i}" for i, letter in enumerate(word, 1)) + "."
    thought = Thought(
        work=work,
        plan="I number the letters.",
        check=f"Check: the last letter {word[-1]} has number {len(word)}.",
        confirm=f"So the word has {len(word)} letters.",
        needed=True,
    )
    answer = f"{word} has {len(word)} letters."
    return plain("word_length", f"length {word}", user, answer, thought)


def letter_count(rng: Random) -> Exchange:
    word = _word(rng)
    letter = rng.choice(word) if rng.random() < 0.85 else rng.choice("aeiorst")
    count, marks = 0, []
    for each in word:
        count += each == letter
        marks.append(f"{each}{count}" if each == letter else each)
    user = rng.choice(
        (
            f"How many times does {letter} occur in {word}?",
            f"How many {letter} are in {word}?",
            f"Count the letter {letter} in {word}.",
        )
    )
    thought = Thought(
        work=" ".join(marks) + ".",
        plan=f"I spell {word} and number every {letter}.",
        check=f"Check: {letter} was numbered {count} times.",
        confirm=f"So the count is {count}.",
        needed=True,
    )
    answer = f"The letter {letter} occurs {count} time{'' if count == 1 else 's'} in {word}."
    return plain("letter_count", f"letters {word} {letter}", user, answer, thought)


def sort_words(rng: Random) -> Exchange:
    initials: dict[str, str] = {}
    for word in rng.sample(WORDS, 12):
        initials.setdefault(word[0], word)
    chosen = list(initials.values())[: rng.randint(3, 5)]
    ordered = sorted(chosen)
    listed = ", ".join(chosen)
    user = rng.choice(
        (
            f"Sort these words: {listed}.",
            f"Sort alphabetically: {listed}.",
            f"Put these words in alphabetical order: {listed}.",
        )
    )
    letters = " ".join(word[0] for word in chosen)
    thought = Thought(
        work=f"First letters: {letters}. In order: {' '.join(word[0] for word in ordered)}.",
        plan="I sort by the first letter.",
        check=f"Check: {len(chosen)} words came in and {len(ordered)} go out.",
        confirm=f"The first is {ordered[0]} and the last is {ordered[-1]}.",
        needed=True,
    )
    return plain("sort_words", f"sort {listed}", user, ", ".join(ordered), thought)


def repeat(rng: Random) -> Exchange:
    text = phrase(rng)
    user = rng.choice(
        (f"Repeat after me: {text}", f"Say: {text}", f"Repeat this: {text}", f'Echo "{text}"')
    )
    thought = Thought(
        work="I repeat the text.",
        plan=f"The text is: {text}.",
        check=f"Check: it has {len(text.split())} words.",
        confirm="I change nothing.",
    )
    return plain("repeat", f"repeat {text}", user, text, thought)


def nth_word(rng: Random) -> Exchange:
    words = phrase(rng).split()
    index, name = rng.choice(((0, "first"), (1, "second"), (-1, "last")))
    text = " ".join(words)
    user = rng.choice(
        (f'What is the {name} word of "{text}"?', f"Give me the {name} word of: {text}")
    )
    thought = Thought(
        work=f"The {name} word is {words[index]}.",
        plan=f"The text has {len(words)} words.",
        check=f"Check: {', '.join(words)}.",
        confirm=f"So it is {words[index]}.",
    )
    return plain("nth_word", f"nth {name} {text}", user, words[index], thought)


def upper_case(rng: Random) -> Exchange:
    word = _word(rng)
    user = rng.choice(
        (f"Write {word} in capital letters.", f"Put {word} in upper case.", f"Uppercase: {word}")
    )
    thought = Thought(
        work=f"{'-'.join(word)} becomes {'-'.join(word.upper())}.",
        plan="Every letter becomes a capital letter.",
        check=f"Check: {len(word)} letters.",
        confirm=f"The first letter is {word[0].upper()}.",
        needed=True,
    )
    return plain("upper_case", f"upper {word}", user, word.upper(), thought)


def join_words(rng: Random) -> Exchange:
    words = [rng.choice(WORDS) for _ in range(rng.randint(2, 4))]
    user = (
        f"Write one sentence: I like {' '.join(words)}."
        if len(words) == 1
        else (f"Say that you like these things: {', '.join(words)}.")
    )
    thought = Thought(
        work="I list them in one sentence.",
        plan=f"There are {len(words)} things.",
        check=f"Check: the last one is {words[-1]}.",
        confirm=f"The first one is {words[0]}.",
    )
    return plain("join_words", f"like {words}", user, f"I like {joined(words)}.", thought)


def times(rng: Random) -> Exchange:
    word, n = rng.choice(WORDS), rng.randint(2, 6)
    user = rng.choice((f"Write {word} {n} times.", f"Say {word} {n} times."))
    thought = Thought(
        work=f"{n} times {word}: " + " ".join(str(i) for i in range(1, n + 1)) + ".",
        plan="I separate them by commas.",
        check=f"Check: {n} words.",
        confirm=f"All of them are {word}.",
    )
    return plain("times", f"times {word} {n}", user, ", ".join([word] * n), thought)


TASKS: dict[Callable[[Random], Exchange], int] = {
    reverse: 6,
    spell: 2,
    word_length: 3,
    letter_count: 4,
    sort_words: 4,
    repeat: 2,
    nth_word: 2,
    upper_case: 2,
    join_words: 1,
    times: 1,
}
