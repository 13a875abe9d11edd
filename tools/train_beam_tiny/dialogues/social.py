"""Small talk, who the assistant is, what a system message asks for, what the user said earlier."""

from collections.abc import Callable
from random import Random

from .exchange import Exchange, Step, Thought, plain
from .words import WORDS, made_up, person, thing

_TALK = (
    (
        (
            "Hello",
            "Hello!",
            "Hi",
            "Hi!",
            "Hey",
            "Hi there!",
            "Good morning!",
            "Hello there",
            "Good evening",
        ),
        "Hello! How can I help you?",
        "A greeting.",
    ),
    (
        ("How are you?", "How are you doing?", "How is it going?", "How are you today?"),
        "I am fine, thank you. How can I help you?",
        "A friendly question.",
    ),
    (
        ("Thanks!", "Thank you.", "Thank you very much!", "Thanks a lot", "Great, thanks."),
        "You are welcome!",
        "The user says thanks.",
    ),
    (
        ("Bye", "Goodbye!", "See you later.", "Bye bye!", "Good night!"),
        "Goodbye!",
        "The user leaves.",
    ),
    (
        (
            "What can you do?",
            "What are you good at?",
            "Help",
            "How can you help me?",
            "What do you do?",
        ),
        "I can add small numbers, read lists, sort and spell words, and call tools.",
        "A question about what I can do.",
    ),
    (
        ("Are you human?", "Are you a robot?", "Are you a person?", "Are you real?"),
        "No, I am a small language model.",
        "A question about me.",
    ),
    (
        ("How big are you?", "How many parameters do you have?", "Are you a large model?"),
        "I am small: about 5 million parameters.",
        "A question about my size.",
    ),
    (
        ("Tell me a joke.", "Tell me a joke", "Do you know a joke?", "Make me laugh."),
        "Why did the small model cross the road? It had too few parameters to go around.",
        "A joke.",
    ),
)
_WHO = (
    "Who are you?",
    "What is your name?",
    "What's your name?",
    "Tell me who you are.",
    "who are you",
)
_PLACES = (
    "library",
    "museum",
    "bakery",
    "garden",
    "school",
    "hotel",
    "station",
    "harbor",
    "market",
)


def _thought(work: str) -> Thought:
    return Thought(
        work=work,
        plan="I read the message.",
        check="No tool and no calculation is needed.",
        confirm="I answer in a short and friendly way.",
    )


def talk(rng: Random) -> Exchange:
    asks, answer, work = rng.choice(_TALK)
    user = rng.choice(asks)
    return plain("talk", f"talk {user}", user, answer, _thought(work))


def who(rng: Random) -> Exchange:
    user = rng.choice(_WHO)
    answer = "I am Beam, a small helpful assistant."
    return plain("who", f"who {user}", user, answer, _thought("A question about me."))


def introduce(rng: Random) -> Exchange:
    name = person(rng)
    user = rng.choice(
        (f"My name is {name}.", f"Hi, I am {name}.", f"Hello, my name is {name}", f"I'm {name}.")
    )
    thought = _thought(f"The user is called {name}.")
    return plain("introduce", f"introduce {name}", user, f"Nice to meet you, {name}!", thought)


def persona(rng: Random) -> Exchange:
    name, place = person(rng), rng.choice(_PLACES)
    system = rng.choice(
        (
            f"You are {name}, the assistant of a {place}.",
            f"Your name is {name}. You help in a {place}.",
        )
    )
    if rng.random() < 0.7:
        user, answer = rng.choice(_WHO), f"I am {name}, the assistant of a {place}."
        work = f"The system message says that I am {name}."
    else:
        user = rng.choice(("Where do you work?", "Where are you?"))
        answer = f"I work in a {place}."
        work = f"The system message says {place}."
    step = Step(_thought(work), answer)
    return Exchange("persona", f"persona {name} {place}", user, (step,), system=system)


def secret(rng: Random) -> Exchange:
    what = rng.choice(
        ("password", "code word", "room number", "wifi password", "meeting point", "motto")
    )
    value = (
        str(rng.randint(100, 999))
        if what == "room number"
        else (thing(rng) if rng.random() < 0.5 else made_up(rng))
    )
    system = f"You are a helpful assistant. The {what} is {value}."
    user = rng.choice((f"What is the {what}?", f"Tell me the {what}.", f"I need the {what}."))
    step = Step(_thought(f"The system message says {value}."), f"The {what} is {value}.")
    return Exchange("system_fact", f"secret {what} {value}", user, (step,), system=system)


def memory(rng: Random) -> tuple[Exchange, Exchange]:
    """A statement, and the question that recalls it later."""
    what = rng.choice(
        (
            "favorite color",
            "favorite animal",
            "favorite word",
            "dog's name",
            "cat's name",
            "best friend",
        )
    )
    value = person(rng) if what.endswith(("name", "friend")) else rng.choice(WORDS)
    tell = plain(
        "memory_tell",
        f"tell {what} {value}",
        f"My {what} is {value}.",
        f"Good to know: {value}.",
        _thought(f"The user tells me the {what}."),
    )
    ask = plain(
        "memory",
        f"recall {what} {value}",
        rng.choice((f"What is my {what}?", f"Do you remember my {what}?")),
        f"Your {what} is {value}.",
        _thought(f"The user said {value}."),
    )
    return tell, ask


TASKS: dict[Callable[[Random], Exchange], int] = {
    talk: 5,
    who: 2,
    introduce: 2,
    persona: 2,
    secret: 2,
}
