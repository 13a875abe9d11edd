"""Arithmetic with its scratch work: sums, differences, products, comparisons, time, units."""

from collections.abc import Callable
from random import Random

from .exchange import Exchange, Thought, plain
from .words import ITEMS, person


def _number(rng: Random) -> int:
    return rng.randint(0, 10 ** rng.choice((1, 2, 2, 2, 3)) - 1)


def add_work(a: int, b: int) -> str:
    """Column addition from the right, one sentence a column."""
    steps, carry, place = [], 0, 0
    while place < max(len(str(a)), len(str(b))):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        text = f"{x}+{y}" + (f"+{carry}" if carry else "") + f"={total}"
        carry = total // 10
        steps.append(text + (f", write {total % 10} carry 1." if carry else "."))
        place += 1
    return " ".join(steps) + f" {a}+{b}={a + b}."


def subtract_work(a: int, b: int) -> str:
    """Column subtraction from the right for a >= b."""
    steps, borrow = [], 0
    for place in range(len(str(a))):
        x, y = a // 10**place % 10, b // 10**place % 10
        text = f"{x}-{y}" + (f"-{borrow}" if borrow else "")
        value = x - y - borrow
        borrow = int(value < 0)
        steps.append(f"{text}: borrow, {value + 10}." if borrow else f"{text}={value}.")
    return " ".join(steps) + f" {a}-{b}={a - b}."


def multiply_work(a: int, b: int) -> str:
    """Product of `a` (up to two digits) with one digit `b`."""
    if a < 10:
        return f"{a}*{b}={a * b}."
    ones, tens = a % 10, a // 10
    return (
        f"{ones}*{b}={ones * b}. {tens}0*{b}={tens * b * 10}. "
        f"{tens * b * 10}+{ones * b}={a * b}. {a}*{b}={a * b}."
    )


def _thought(work: str, what: str, check: str, result: object) -> Thought:
    return Thought(
        work=work,
        plan=f"The user wants {what}. I go digit by digit.",
        check=f"Check: {check}.",
        confirm=f"I look at it once more: {work}\nThe result stays {result}.",
        needed=True,
    )


def addition(rng: Random) -> Exchange:
    a, b = _number(rng), _number(rng)
    ask = rng.choice(
        (
            "What is {a} + {b}?",
            "{a} + {b}",
            "Add {a} and {b}.",
            "What is {a} plus {b}?",
            "Compute {a} + {b}.",
            "How much is {a} + {b}?",
            "what's {a}+{b}",
            "{a}+{b}=?",
            "Calculate {a} plus {b}.",
            "Please add {a} and {b}.",
        )
    )
    thought = _thought(add_work(a, b), "a sum", f"{a + b}-{b}={a}", a + b)
    user = ask.format(a=a, b=b)
    return plain("addition", f"add {a} {b}", user, f"{a} + {b} = {a + b}.", thought)


def subtraction(rng: Random) -> Exchange:
    b, a = sorted((_number(rng), _number(rng)))
    ask = rng.choice(
        (
            "What is {a} - {b}?",
            "{a} - {b}",
            "Subtract {b} from {a}.",
            "What is {a} minus {b}?",
            "Compute {a} - {b}.",
            "How much is {a} - {b}?",
            "what's {a}-{b}",
            "{a}-{b}=?",
        )
    )
    thought = _thought(subtract_work(a, b), "a difference", f"{a - b}+{b}={a}", a - b)
    user = ask.format(a=a, b=b)
    return plain("subtraction", f"sub {a} {b}", user, f"{a} - {b} = {a - b}.", thought)


def multiplication(rng: Random) -> Exchange:
    a, b = rng.randint(2, rng.choice((9, 30, 99))), rng.randint(2, 9)
    ask = rng.choice(
        (
            "What is {a} * {b}?",
            "What is {a} times {b}?",
            "Multiply {a} by {b}.",
            "{a} * {b}",
            "Compute {a} times {b}.",
            "How much is {a} x {b}?",
        )
    )
    thought = _thought(multiply_work(a, b), "a product", f"{b}*{a}={a * b}", a * b)
    user = ask.format(a=a, b=b)
    return plain("multiplication", f"mul {a} {b}", user, f"{a} * {b} = {a * b}.", thought)


def two_steps(rng: Random) -> Exchange:
    a, b = rng.randint(1, 60), rng.randint(1, 39)
    c = rng.randint(1, min(40, a + b))
    first, result = a + b, a + b - c
    user = rng.choice(("What is {a} + {b} - {c}?", "Compute {a} + {b} - {c}.")).format(
        a=a, b=b, c=c
    )
    work = f"{add_work(a, b)} {subtract_work(first, c)}"
    thought = _thought(work, "a sum and then a difference", f"{result}+{c}={first}", result)
    answer = f"{a} + {b} - {c} = {result}."
    return plain("two_steps", f"two {a} {b} {c}", user, answer, thought)


def word_problem(rng: Random) -> Exchange:
    name, item = person(rng), rng.choice(ITEMS)
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    if rng.random() < 0.5:
        more = rng.choice(("buys {b} more", "finds {b} more", "gets {b} more", "picks up {b} more"))
        result, work = a + b, add_work(a, b)
        check = f"{a + b}-{b}={a}"
    else:
        a, b = max(a, b), min(a, b)
        more = rng.choice(("gives away {b}", "loses {b}", "sells {b}", "puts {b} away"))
        result, work = a - b, subtract_work(a, b)
        check = f"{a - b}+{b}={a}"
    user = f"{name} has {a} {item} and {more.format(b=b)}. " + rng.choice(
        (
            f"How many {item} does {name} have now?",
            f"How many {item} are there now?",
            "How many now?",
        )
    )
    what = f"the number of {item}"
    key = f"problem {name} {item} {a} {b} {result}"
    answer = f"{name} has {result} {item}."
    return plain("word_problem", key, user, answer, _thought(work, what, check, result))


def compare(rng: Random) -> Exchange:
    numbers = rng.sample(range(1, 999 if rng.random() < 0.4 else 99), rng.randint(2, 5))
    largest = rng.random() < 0.5
    word = rng.choice(("largest", "biggest") if largest else ("smallest", "lowest"))
    result = max(numbers) if largest else min(numbers)
    listed = ", ".join(map(str, numbers))
    user = rng.choice(
        (
            f"Which number is the {word}: {listed}?",
            f"Find the {word} of {listed}.",
            f"What is the {word} of these numbers: {listed}?",
        )
    )
    best, trail = numbers[0], [str(numbers[0])]
    for number in numbers[1:]:
        best = max(best, number) if largest else min(best, number)
        trail.append(str(best))
    work = f"Best so far: {', '.join(trail)}."
    thought = Thought(
        work=work,
        plan=f"I go through the numbers and keep the {word}.",
        check=f"Check: {result} is in the list {listed}.",
        confirm=f"No other number of {listed} is better than {result}.",
    )
    return plain("compare", f"cmp {word} {listed}", user, f"The {word} is {result}.", thought)


def sort_numbers(rng: Random) -> Exchange:
    numbers = rng.sample(range(1, 99), rng.randint(3, 5))
    listed, ordered = ", ".join(map(str, numbers)), sorted(numbers)
    answer = ", ".join(map(str, ordered))
    user = rng.choice(
        (f"Sort these numbers: {listed}.", f"Put {listed} in order.", f"Sort {listed}")
    )
    tens: dict[int, list[int]] = {}
    for number in ordered:
        tens.setdefault(number // 10, []).append(number)
    work = " ".join(f"{t}x: {' '.join(map(str, group))}." for t, group in tens.items())
    thought = Thought(
        work=work,
        plan="I sort from the smallest to the largest, by tens.",
        check=f"Check: {len(numbers)} numbers came in and {len(numbers)} go out.",
        confirm=f"Again in order: {answer}.",
        needed=True,
    )
    return plain("sort_numbers", f"sort {listed}", user, answer, thought)


def parity(rng: Random) -> Exchange:
    number = _number(rng)
    even = number % 2 == 0
    word = "even" if even else "odd"
    user = rng.choice(
        (f"Is {number} even or odd?", f"Is {number} odd or even?", f"Is the number {number} even?")
    )
    digit = number % 10
    thought = Thought(
        work=f"The last digit is {digit}, which is {word}.",
        plan="Only the last digit matters.",
        check=f"Check: 0, 2, 4, 6 and 8 are even; {digit} is {word}.",
        confirm=f"So {number} is {word}.",
    )
    return plain("parity", f"parity {number}", user, f"{number} is {word}.", thought)


_UNITS = (
    ("km", "m", 1000),
    ("kg", "g", 1000),
    ("m", "cm", 100),
    ("cm", "mm", 10),
    ("l", "ml", 1000),
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("weeks", "days", 7),
    ("dozen", "pieces", 12),
    ("days", "hours", 24),
    ("years", "months", 12),
    ("euros", "cents", 100),
)


def conversion(rng: Random) -> Exchange:
    unit, small, factor = rng.choice(_UNITS)
    n = rng.randint(2, 99 if factor in (10, 100, 1000) else 9)
    user = rng.choice(
        (
            f"How many {small} are {n} {unit}?",
            f"Convert {n} {unit} to {small}.",
            f"{n} {unit} in {small}?",
            f"What is {n} {unit} in {small}?",
        )
    )
    zeros = len(str(factor)) - 1
    round_factor = factor == 10**zeros
    product = f"{n} and {zeros} zeros: {n * factor}." if round_factor else multiply_work(factor, n)
    thought = Thought(
        work=f"One of {unit} is {factor} {small}. {product}",
        plan=f"I convert {unit} to {small}.",
        check=f"Check: {n}*{factor}={n * factor}.",
        confirm=f"So {n} {unit} are {n * factor} {small}.",
        needed=True,
    )
    answer = f"{n} {unit} = {n * factor} {small}."
    return plain("conversion", f"unit {unit} {small} {n}", user, answer, thought)


def clock(rng: Random) -> Exchange:
    hour, minute, later = (
        rng.randint(0, 23),
        rng.choice((0, 15, 30, 45, 20, 40)),
        rng.randint(1, 12),
    )
    result = (hour + later) % 24
    start, end = f"{hour}:{minute:02d}", f"{result}:{minute:02d}"
    user = rng.choice(
        (
            f"It is {start}. What time is it in {later} hours?",
            f"What time is {later} hours after {start}?",
        )
    )
    over = hour + later >= 24
    work = f"{hour}+{later}={hour + later}." + (f" {hour + later}-24={result}." if over else "")
    thought = Thought(
        work=work,
        plan="I add the hours and keep the minutes.",
        check=f"Check: a day has 24 hours, and {result} is below 24.",
        confirm=f"The minutes stay {minute:02d}, so it is {end}.",
        needed=True,
    )
    return plain("clock", f"clock {start} {later}", user, f"It is {end}.", thought)


def counting(rng: Random) -> Exchange:
    step = rng.choice((1, 1, 1, 2, 5, 10))
    start = rng.choice((1, 1, 0, rng.randint(2, 60)))
    values = list(range(start, start + step * rng.randint(4, 20), step))
    by = "" if step == 1 else f" in steps of {step}"
    user = rng.choice(("Count from {a} to {b}{by}.", "Please count from {a} to {b}{by}.")).format(
        a=values[0], b=values[-1], by=by
    )
    thought = Thought(
        work=f"Start {values[0]}, step {step}, end {values[-1]}.",
        plan="I write all the numbers, separated by commas.",
        check=f"Check: the last number is {values[-1]}.",
        confirm=f"Every number is {step} more than the one before.",
    )
    key = f"count {values[0]} {values[-1]} {step}"
    return plain("counting", key, user, ", ".join(map(str, values)), thought)


TASKS: dict[Callable[[Random], Exchange], int] = {
    addition: 10,
    subtraction: 7,
    multiplication: 5,
    two_steps: 4,
    word_problem: 6,
    compare: 3,
    sort_numbers: 3,
    parity: 1,
    conversion: 4,
    clock: 3,
    counting: 3,
}
