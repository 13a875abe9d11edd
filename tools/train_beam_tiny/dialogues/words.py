# Word lists read best as running text.
# ruff: noqa: SIM905
"""Word lists the generators draw from, and made-up names for what must be copied, not known."""

from random import Random

NAMES = (
    "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Karen Leo Mia Noah Olga Paul Quinn Rosa "
    "Sam Tina Uma Victor Wendy Xenia Yara Zoe Adam Bella Carl Dora Eric Fiona George Hanna Ivan "
    "Julia Kurt Lara Mark Nina Oscar Petra Ralf Sara Tom Ursula Vera Walter Alice Bob Maria Omar "
    "Priya Lin Chen Yuki Ravi Aisha Diego Elena"
).split()
CITIES = (
    "Paris London Berlin Madrid Rome Oslo Vienna Prague Lisbon Athens Dublin Helsinki Warsaw "
    "Brussels Budapest Cairo Tokyo Delhi Lima Boston Chicago Denver Seattle Austin Toronto Sydney "
    "Munich Hamburg Milan Porto Geneva Zurich Lyon Kyoto Osaka Seoul Nairobi Lagos Bergen Turin"
).split()
CAPITALS = dict(
    pair.replace("_", " ").split(":")
    for pair in (
        "France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon Norway:Oslo "
        "Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Austria:Vienna Greece:Athens "
        "Ireland:Dublin Poland:Warsaw Belgium:Brussels Hungary:Budapest Egypt:Cairo Japan:Tokyo "
        "Peru:Lima Canada:Ottawa Australia:Canberra China:Beijing Russia:Moscow Turkey:Ankara "
        "Iceland:Reykjavik Switzerland:Bern Netherlands:Amsterdam Croatia:Zagreb Serbia:Belgrade "
        "Romania:Bucharest Bulgaria:Sofia Ukraine:Kyiv Latvia:Riga Estonia:Tallinn "
        "Lithuania:Vilnius Cuba:Havana Chile:Santiago Kenya:Nairobi Ghana:Accra Iran:Tehran "
        "Iraq:Baghdad Nepal:Kathmandu Thailand:Bangkok Vietnam:Hanoi Indonesia:Jakarta "
        "Morocco:Rabat Tunisia:Tunis Jamaica:Kingston Senegal:Dakar Lebanon:Beirut Jordan:Amman "
        "Brazil:Brasilia Colombia:Bogota Ecuador:Quito Venezuela:Caracas Uruguay:Montevideo "
        "Slovakia:Bratislava Slovenia:Ljubljana Albania:Tirana Malta:Valletta Cyprus:Nicosia "
        "Algeria:Algiers Libya:Tripoli Syria:Damascus Qatar:Doha Oman:Muscat Pakistan:Islamabad "
        "Georgia:Tbilisi Armenia:Yerevan Argentina:Buenos_Aires India:New_Delhi "
        "Mexico:Mexico_City United_States:Washington South_Korea:Seoul Saudi_Arabia:Riyadh "
        "New_Zealand:Wellington Czech_Republic:Prague United_Kingdom:London"
    ).split()
)
ITEMS = (
    "apples pears plums books pens cards coins stamps shells eggs cups plates chairs boxes bags "
    "keys lamps rings balls toys candles stones flowers oranges lemons cookies nuts tickets"
).split()
WORDS = (
    "lemon apple table chair house mouse river stone bread water green music paper plant tiger "
    "zebra snake horse sheep goat bird fish cloud storm rain snow sun moon star light night day "
    "morning garden flower forest tree leaf root seed grass field farm road bridge boat ship train "
    "plane wheel engine clock watch glass bottle spoon fork knife plate cup pot oven kitchen room "
    "door window wall floor roof tower castle king queen prince child friend family doctor nurse "
    "teacher writer singer dancer painter baker butcher driver pilot sailor soldier hunter fisher "
    "banana cherry grape peach melon carrot onion potato tomato pepper butter cheese honey sugar "
    "salt coffee tea milk juice soup salad pizza pasta rice bean cake candy lamp chain rope sand "
    "cat dog cow pig hen duck owl frog bear wolf fox deer rabbit monkey lion camel whale shark "
    "red blue yellow black white brown purple orange silver gold letter number book story song "
    "dance game ball doll drum piano violin guitar pencil brush color shape circle square line"
).split()
ADJECTIVES = (
    "red blue green small large old new heavy light soft wooden golden quiet bright".split()
)
ANIMALS = "cat dog cow pig hen duck owl frog bear wolf fox deer rabbit lion camel horse".split()
OPPOSITES = dict(
    pair.split(":")
    for pair in (
        "hot:cold big:small fast:slow old:new up:down left:right open:closed day:night black:white "
        "happy:sad rich:poor hard:soft high:low long:short light:dark wet:dry full:empty "
        "early:late near:far clean:dirty strong:weak loud:quiet thick:thin true:false "
        "first:last in:out"
    ).split()
)
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
FRUITS = "apple pear plum banana cherry grape peach melon lemon orange".split()
VEGETABLES = "carrot onion potato pepper cabbage spinach bean pea radish leek".split()
TOPICS = (
    "the sky",
    "black holes",
    "the ocean",
    "quantum physics",
    "football",
    "the stock market",
    "philosophy",
    "dinosaurs",
    "ancient Rome",
    "volcanoes",
    "opera",
    "chess openings",
    "cooking",
    "the moon landing",
    "bees",
    "electric cars",
    "poetry",
    "the brain",
    "medicine",
    "movies",
)

_ONSETS = "b c d f g h j k l m n p r s t v w z br cl dr fl gr kr pl st tr".split()
_VOWELS = "a e i o u".split()
_CODAS = ["", "", "", "n", "r", "l", "s", "x", "m", "k"]


def made_up(rng: Random) -> str:
    """A lower-case name of two or three syllables that no list holds."""
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
        for _ in range(rng.choice((2, 2, 3)))
    )


def person(rng: Random) -> str:
    """A first name, known or made up."""
    return rng.choice(NAMES) if rng.random() < 0.6 else made_up(rng).capitalize()


def place(rng: Random) -> str:
    """A city, known or made up."""
    return rng.choice(CITIES) if rng.random() < 0.7 else made_up(rng).capitalize()


def thing(rng: Random) -> str:
    """One or two words that name a thing."""
    noun = rng.choice(WORDS)
    return f"{rng.choice(ADJECTIVES)} {noun}" if rng.random() < 0.4 else noun


def phrase(rng: Random) -> str:
    """Two to five words without meaning together, to be copied."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 5)))


def joined(values: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return values[0] if len(values) == 1 else ", ".join(values[:-1]) + " and " + values[-1]
