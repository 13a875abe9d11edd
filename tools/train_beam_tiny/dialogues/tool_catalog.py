"""The tool families the dialogues use."""

from random import Random
from typing import Any

from .tool_family import Family, Maker, Parameter
from .words import ITEMS, WORDS, made_up, person, phrase, place, thing

_STRING: dict[str, Any] = {"type": "string"}
_INTEGER: dict[str, Any] = {"type": "integer"}
_NUMBER: dict[str, Any] = {"type": "number"}
_BOOLEAN: dict[str, Any] = {"type": "boolean"}
_STRINGS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_INTEGERS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}


def _enum(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def _one_of(*values: Any) -> Maker:
    return lambda rng: rng.choice(values)


def _int(low: int, high: int) -> Maker:
    return lambda rng: rng.randint(low, high)


def _number(low: int, high: int) -> Maker:
    return lambda rng: (
        rng.randint(low, high) if rng.random() < 0.4 else rng.randint(low * 10 + 1, high * 10) / 10
    )


def _clock(rng: Random) -> str:
    return f"{rng.randint(0, 23)}:{rng.choice((0, 15, 30, 45, 10, 50)):02d}"


def _date(rng: Random) -> str:
    return f"20{rng.randint(24, 35)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def _code(rng: Random) -> str:
    return f"{rng.choice('ABCDEFGHKLMNPRSTX')}-{rng.randint(100, 9999)}"


def _symbol(rng: Random) -> str:
    return "".join(rng.choice("ABCDEFGHIKLMNOPRST") for _ in range(rng.randint(3, 4)))


def _path(rng: Random) -> str:
    return "/" + "/".join(rng.choice(WORDS) for _ in range(rng.randint(1, 3)))


def _list(make: Maker, low: int, high: int) -> Maker:
    def made(rng: Random) -> list[Any]:
        values: list[Any] = []
        size = rng.randint(low, high)
        while len(values) < size:
            value = make(rng)
            if value not in values:
                values.append(value)
        return values

    return made


def _object(**makers: Maker) -> Maker:
    return lambda rng: {key: make(rng) for key, make in makers.items()}


def _object_schema(**types: str) -> dict[str, Any]:
    return {"type": "object", "properties": {key: {"type": kind} for key, kind in types.items()}}


def _status(rng: Random) -> dict[str, Any]:
    return {"status": rng.choice(("ok", "done", "success"))}


def _value(key: str, make: Maker) -> Any:
    return lambda rng: {key: make(rng)}


P = Parameter
_ROOMS = _one_of(
    "kitchen", "bedroom", "office", "garage", "hall", "bathroom", "living room", "cellar"
)

FAMILIES = (
    Family(
        "weather", ("get_weather", "weather", "fetch_weather", "weather_forecast", "current_weather"),
        ("Get the weather.", "Weather of a city.", "Get the current weather for a city."),
        {"city": P(("city", "location", "place", "town"), _STRING, place, "Name of the city."),
         "days": P(("days", "num_days"), _INTEGER, _int(2, 14), "Number of days.", " for {} days"),
         "unit": P(("unit", "units"), _enum("celsius", "fahrenheit"), _one_of("celsius", "fahrenheit"),
                   "Temperature unit.", " in {}")},
        ("What is the weather in {city}?", "How is the weather in {city}?", "Weather in {city}?",
         "Tell me the weather in {city}.", "what's the weather like in {city}", "I need the weather for {city}."),
        ("What is the weather?", "How is the weather?"),
        lambda rng: {"temperature": rng.randint(-9, 38), "condition": rng.choice(("sunny", "rainy", "cloudy", "windy", "snowy", "foggy"))},
        "In {city} it is {condition} with {temperature} degrees.", True,
    ),
    Family(
        "email", ("send_email", "email", "send_mail", "mail_send"), ("Send an email.", "Send a mail to a person."),
        {"to": P(("to", "recipient", "receiver"), _STRING, person, "Who gets it."),
         "subject": P(("subject", "title", "about"), _STRING, phrase, "Subject line."),
         "urgent": P(("urgent", "important"), _BOOLEAN, _one_of(True), "Mark as urgent.", ", it is urgent")},
        ("Send an email to {to} with the subject {subject}.", "Write a mail to {to} about {subject}.",
         "Email {to} about {subject}."),
        ("Send an email.",), _status, "The email to {to} is sent.",
    ),
    Family(
        "alarm", ("set_alarm", "create_alarm", "add_alarm", "alarm"), ("Set an alarm.", "Set an alarm clock."),
        {"time": P(("time", "at", "alarm_time"), _STRING, _clock, "Time as hour:minute."),
         "label": P(("label", "name"), _STRING, thing, "Name of the alarm.", " with the label {}")},
        ("Set an alarm for {time}.", "Wake me at {time}.", "I need an alarm at {time}."),
        ("Set an alarm.",), _status, "The alarm is set for {time}.", True,
    ),
    Family(
        "timer", ("set_timer", "start_timer", "timer"), ("Start a timer.", "Start a kitchen timer."),
        {"minutes": P(("minutes", "duration", "num_minutes"), _INTEGER, _int(1, 90), "Minutes.")},
        ("Set a timer for {minutes} minutes.", "Start a {minutes} minute timer.", "Timer for {minutes} minutes, please."),
        ("Start a timer.", "Set a timer."), _status, "The timer runs for {minutes} minutes.", True,
    ),
    Family(
        "currency", ("convert_currency", "exchange", "currency_convert"), ("Convert money.", "Convert an amount between currencies."),
        {"amount": P(("amount", "value", "sum"), _NUMBER, _number(1, 500), "How much."),
         "source": P(("from", "source", "from_currency"), _enum("EUR", "USD", "GBP", "JPY"), _one_of("EUR", "USD"), "Currency to convert from."),
         "target": P(("to", "target", "to_currency"), _enum("EUR", "USD", "GBP", "JPY"), _one_of("GBP", "JPY"), "Currency to convert to.")},
        ("Convert {amount} {source} to {target}.", "How much is {amount} {source} in {target}?", "Change {amount} {source} into {target}."),
        ("Convert some money.",), _value("result", _number(1, 900)), "{amount} {source} are {result} {target}.",
    ),
    Family(
        "event", ("create_event", "add_event", "schedule_meeting", "calendar_add"), ("Add an event to the calendar.", "Create a calendar event."),
        {"title": P(("title", "name", "event"), _STRING, thing, "Title."),
         "date": P(("date", "day", "when"), _STRING, _date, "Date."),
         "people": P(("people", "participants", "guests"), _STRINGS, _list(person, 1, 3), "Who comes.", " with {}")},
        ("Add the event {title} on {date}.", "Plan {title} on {date}.", "Put {title} in my calendar on {date}."),
        ("Add an event to my calendar.",), _status, "{title} is planned for {date}.",
    ),
    Family(
        "music", ("play_music", "play_song", "music_play", "play"), ("Play a song.", "Play music."),
        {"song": P(("song", "title", "track"), _STRING, thing, "Name of the song."),
         "volume": P(("volume", "loudness"), _INTEGER, _int(1, 100), "Volume in percent.", " at volume {}"),
         "repeat": P(("repeat", "loop"), _BOOLEAN, _one_of(True), "Repeat forever.", " again and again")},
        ("Play the song {song}.", "Play {song}.", "I want to hear {song}."),
        ("Play some music.",), _status, "Now playing {song}.",
    ),
    Family(
        "light", ("set_light", "switch_light", "light_control", "control_light"), ("Switch a light.", "Turn the light of a room on or off."),
        {"room": P(("room", "where", "location"), _STRING, _ROOMS, "Which room."),
         "on": P(("on", "state", "power"), _BOOLEAN, _one_of(True, False), "True for on.")},
        ("Turn {on} the light in the {room}.", "Turn the {room} light {on}.", "Switch {on} the light in the {room}.", "Light {on} in the {room}, please."),
        ("Turn on the light.",), _status, "The light in the {room} is {on}.", True,
    ),
    Family(
        "stock", ("get_stock_price", "stock_price", "stock_quote", "get_quote"), ("Get the price of a stock.", "Price of a share."),
        {"symbol": P(("symbol", "ticker", "stock"), _STRING, _symbol, "Ticker symbol.")},
        ("What is the price of {symbol}?", "Stock price of {symbol}?", "How much is one share of {symbol}?", "Get me the price of {symbol} stock."),
        ("What is the stock price?",), _value("price", _number(5, 900)), "{symbol} costs {price}.", True,
    ),
    Family(
        "translate", ("translate", "translate_text", "translator"), ("Translate a text.",),
        {"text": P(("text", "phrase", "input"), _STRING, phrase, "Text to translate."),
         "language": P(("language", "target", "target_language"), _enum("french", "german", "spanish", "italian"), _one_of("french", "german", "spanish", "italian"), "Language to translate into.")},
        ('Translate "{text}" to {language}.', 'Translate "{text}" into {language}.', 'How do you say "{text}" in {language}?'),
        ("Translate a text.",), _value("translation", made_up), "In {language} it is: {translation}.",
    ),
    Family(
        "note", ("create_note", "save_note", "add_note", "write_note"), ("Save a note.", "Write a note."),
        {"text": P(("text", "content", "note", "body"), _STRING, phrase, "What to note."),
         "tags": P(("tags", "labels"), _STRINGS, _list(_one_of(*WORDS), 1, 3), "Tags.", " with the tags {}")},
        ('Save the note "{text}".', 'Note down "{text}".', 'Write a note "{text}".'),
        ("Save a note.",), lambda rng: {"status": "saved", "id": rng.randint(1, 999)}, "The note is saved with id {id}.",
    ),
    Family(
        "table", ("book_table", "reserve_table", "reserve", "table_booking"), ("Book a table.", "Reserve a table in a restaurant."),
        {"restaurant": P(("restaurant", "place", "name"), _STRING, lambda rng: made_up(rng).capitalize(), "Restaurant."),
         "people": P(("people", "guests", "party_size"), _INTEGER, _int(2, 12), "Number of guests."),
         "time": P(("time", "at"), _STRING, _clock, "Time.")},
        ("Book a table at {restaurant} for {people} people at {time}.", "Reserve a table for {people} at {restaurant} at {time}."),
        ("Book a table.",), _value("confirmation", _code), "Your table at {restaurant} is booked: {confirmation}.",
    ),
    Family(
        "calculator", ("calculate", "calculator", "evaluate", "compute"), ("Evaluate an expression.", "A calculator."),
        {"expression": P(("expression", "formula", "input"), _STRING, lambda rng: f"{rng.randint(1, 999)} {rng.choice('+-*/')} {rng.randint(1, 999)}", "What to compute.")},
        ("Use the calculator for {expression}.", "Calculate {expression} with the tool.", "Let the calculator compute {expression}."),
        ("Use the calculator.",), _value("value", _number(1, 900)), "The calculator says {value}.", True,
    ),
    Family(
        "shopping", ("add_to_cart", "add_items", "shopping_list_add", "buy"), ("Add items to the shopping list.", "Put things on a list."),
        {"items": P(("items", "products", "things"), _STRINGS, _list(_one_of(*ITEMS, *WORDS), 1, 4), "What to add.")},
        ("Add {items} to my shopping list.", "Put {items} on the shopping list.", "I need to buy {items}."),
        ("Add something to my shopping list.",), _value("count", _int(1, 30)), "The list now has {count} items.",
    ),
    Family(
        "user", ("get_user", "find_user", "user_info", "load_user"), ("Get a user by number.", "Load a user."),
        {"id": P(("id", "user_id", "number"), _INTEGER, _int(1, 9999), "Number of the user.")},
        ("Who is user {id}?", "Get user {id}.", "Show me the user with number {id}.", "Load user {id}."),
        ("Get a user.",), _value("name", person), "User {id} is {name}.", True,
    ),
    Family(
        "files", ("list_files", "list_directory", "ls", "show_files"), ("List the files in a folder.", "Show a folder."),
        {"path": P(("path", "folder", "directory"), _STRING, _path, "Path of the folder."),
         "recursive": P(("recursive", "deep"), _BOOLEAN, _one_of(True), "Include subfolders.", " with all subfolders")},
        ("List the files in {path}.", "Which files are in {path}?", "Show me the folder {path}."),
        ("List the files.",), _value("files", _list(lambda rng: rng.choice(WORDS) + ".txt", 1, 3)), "The folder holds {files}.",
    ),
    Family(
        "search", ("search", "web_search", "search_web", "find"), ("Search the web.", "Search for a text."),
        {"query": P(("query", "q", "text"), _STRING, phrase, "What to search."),
         "limit": P(("limit", "max_results", "count"), _INTEGER, _int(1, 50), "How many results.", " and show {} results")},
        ("Search for {query}.", "Search the web for {query}.", "Look up {query}."),
        ("Search the web.",), _value("hits", _int(0, 900)), "The search found {hits} results.",
    ),
    Family(
        "money", ("send_money", "transfer_money", "pay", "transfer"), ("Send money to a person.", "Make a payment."),
        {"to": P(("to", "recipient", "payee"), _STRING, person, "Who gets the money."),
         "amount": P(("amount", "sum"), _NUMBER, _number(1, 300), "How much."),
         "currency": P(("currency", "unit"), _enum("EUR", "USD", "GBP"), _one_of("EUR", "USD", "GBP"), "Currency.")},
        ("Send {amount} {currency} to {to}.", "Pay {to} {amount} {currency}.", "Transfer {amount} {currency} to {to}."),
        ("Send some money.",), _status, "{to} gets {amount} {currency}.",
    ),
    Family(
        "thermostat", ("set_temperature", "thermostat", "set_heating"), ("Set the temperature of a room.", "Control the heating."),
        {"room": P(("room", "zone", "where"), _STRING, _ROOMS, "Which room."),
         "temperature": P(("temperature", "degrees", "target"), _NUMBER, _number(15, 27), "Degrees.")},
        ("Set the {room} to {temperature} degrees.", "Heat the {room} to {temperature} degrees.", "Make the {room} {temperature} degrees warm."),
        ("Change the temperature.",), _status, "The {room} is set to {temperature} degrees.", True,
    ),
    Family(
        "parcel", ("ship_package", "send_parcel", "create_shipment"), ("Send a parcel.", "Ship a package to an address."),
        {"address": P(("address", "to", "destination"), _object_schema(street="string", number="integer", city="string"),
                      _object(street=lambda rng: made_up(rng).capitalize(), number=_int(1, 99), city=place), "Where to."),
         "express": P(("express", "fast"), _BOOLEAN, _one_of(True), "Fast delivery.", " by express")},
        ("Ship a package to {address}.", "Send a parcel to {address}."),
        ("Send a parcel.",), _value("tracking", _code), "The parcel has the number {tracking}.",
    ),
    Family(
        "order", ("get_order", "order_status", "track_order", "find_order"), ("Get the state of an order.", "Track an order."),
        {"order": P(("order", "order_id", "code"), _STRING, _code, "Code of the order.")},
        ("Where is my order {order}?", "What is the status of order {order}?", "Track order {order}.", "Check the order {order}."),
        ("Where is my order?",), _value("state", _one_of("shipped", "delivered", "lost", "packed", "delayed")), "Order {order} is {state}.", True,
    ),
    Family(
        "draw", ("draw_point", "plot_point", "set_pixel"), ("Draw a point.",),
        {"point": P(("point", "position"), _object_schema(x="integer", y="integer"), _object(x=_int(0, 200), y=_int(0, 200)), "Where."),
         "color": P(("color", "colour"), _enum("red", "green", "blue"), _one_of("red", "green", "blue"), "Color.", " in {}")},
        ("Draw a point at {point}.", "Put a point at {point}."),
        ("Draw a point.",), _status, "The point is drawn.", True,
    ),
    Family(
        "average", ("average", "mean", "get_average"), ("Average of a list of numbers.",),
        {"numbers": P(("numbers", "values", "data"), _INTEGERS, _list(_int(1, 99), 2, 5), "The numbers.")},
        ("What is the average of {numbers}?", "Compute the average of {numbers}.", "Average {numbers}."),
        ("Compute an average.",), _value("average", _number(1, 99)), "The average is {average}.",
    ),
    Family(
        "rating", ("rate_movie", "add_rating", "rate"), ("Rate a movie.", "Save a rating."),
        {"movie": P(("movie", "title", "name"), _STRING, thing, "The movie."),
         "stars": P(("stars", "rating", "score"), _INTEGER, _int(1, 5), "One to five.")},
        ("Rate the movie {movie} with {stars} stars.", "Give {movie} {stars} stars.", "{stars} stars for the movie {movie}."),
        ("Rate a movie.",), _status, "{movie} has {stars} stars now.",
    ),
)  # fmt: skip

_VERBS = "scan fix move open close check start stop clean paint lock load test reset count".split()
_KEYS = (
    "mode level size name color speed key target source width height label depth phase angle code "
    "user owner channel index weight format group step"
).split()


def invented(rng: Random) -> Family:
    """A family nobody has seen: an arbitrary name and up to three arbitrary parameters, so that
    what is learned is to read the schema."""
    verb, noun = rng.choice(_VERBS), rng.choice(WORDS) if rng.random() < 0.5 else made_up(rng)
    kinds: tuple[tuple[dict[str, Any], Maker], ...] = (
        (_STRING, made_up), (_STRING, thing), (_STRING, _code), (_INTEGER, _int(0, 999)),
        (_NUMBER, _number(0, 90)), (_BOOLEAN, _one_of(True, False)),
        (_enum("low", "mid", "high"), _one_of("low", "mid", "high")),
        (_INTEGERS, _list(_int(1, 50), 1, 4)), (_STRINGS, _list(_one_of(*WORDS), 1, 3)),
    )  # fmt: skip
    parameters = {}
    for key in rng.sample(_KEYS, rng.randint(1, 3)):
        schema, make = rng.choice(kinds)
        parameters[key] = Parameter((key,), schema, make, f"The {key}.")
    stated = ", ".join(f"{key} {{{key}}}" for key in parameters)
    name = f"{verb}_{noun}"
    return Family(
        "invented", (name,), (f"{verb.capitalize()} the {noun}.",), parameters,
        (f"{verb.capitalize()} the {noun} with {stated}.", f"Call {name} with {stated}.",
         f"Please {verb} the {noun}: {stated}."),
        (f"{verb.capitalize()} the {noun}.",), _status, f"The {noun} is done.",
    )  # fmt: skip
