"""Tool families of everyday errands."""

from .tool_family import Family, Parameter
from .tool_values import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    STRING,
    STRINGS,
    clock,
    code,
    date,
    decimal,
    enum_schema,
    integer,
    one_of,
    several,
    single_value,
    status,
    symbol,
)
from .words import WORDS, made_up, person, phrase, place, thing

P = Parameter
_ROOMS = one_of(
    "kitchen", "bedroom", "office", "garage", "hall", "bathroom", "living room", "cellar"
)

EVERYDAY = (
    Family(
        "weather",
        ("get_weather", "weather", "fetch_weather", "weather_forecast", "current_weather"),
        ("Get the weather.", "Weather of a city.", "Get the current weather for a city."),
        {
            "city": P(("city", "location", "place", "town"), STRING, place, "Name of the city."),
            "days": P(
                ("days", "num_days"), INTEGER, integer(2, 14), "Number of days.", " for {} days"
            ),
            "unit": P(
                ("unit", "units"),
                enum_schema("celsius", "fahrenheit"),
                one_of("celsius", "fahrenheit"),
                "Temperature unit.",
                " in {}",
            ),
        },
        (
            "What is the weather in {city}?",
            "How is the weather in {city}?",
            "Weather in {city}?",
            "Tell me the weather in {city}.",
            "what's the weather like in {city}",
            "I need the weather for {city}.",
        ),
        ("What is the weather?", "How is the weather?"),
        lambda rng: {
            "temperature": rng.randint(-9, 38),
            "condition": rng.choice(("sunny", "rainy", "cloudy", "windy", "snowy", "foggy")),
        },
        "In {city} it is {condition} with {temperature} degrees.",
        True,
    ),
    Family(
        "email",
        ("send_email", "email", "send_mail", "mail_send"),
        ("Send an email.", "Send a mail to a person."),
        {
            "to": P(("to", "recipient", "receiver"), STRING, person, "Who gets it."),
            "subject": P(("subject", "title", "about"), STRING, phrase, "Subject line."),
            "urgent": P(
                ("urgent", "important"),
                BOOLEAN,
                one_of(True),
                "Mark as urgent.",
                ", it is urgent",
            ),
        },
        (
            "Send an email to {to} with the subject {subject}.",
            "Write a mail to {to} about {subject}.",
            "Email {to} about {subject}.",
        ),
        ("Send an email.",),
        status,
        "The email to {to} is sent.",
    ),
    Family(
        "alarm",
        ("set_alarm", "create_alarm", "add_alarm", "alarm"),
        ("Set an alarm.", "Set an alarm clock."),
        {
            "time": P(("time", "at", "alarm_time"), STRING, clock, "Time as hour:minute."),
            "label": P(
                ("label", "name"), STRING, thing, "Name of the alarm.", " with the label {}"
            ),
        },
        ("Set an alarm for {time}.", "Wake me at {time}.", "I need an alarm at {time}."),
        ("Set an alarm.",),
        status,
        "The alarm is set for {time}.",
        True,
    ),
    Family(
        "timer",
        ("set_timer", "start_timer", "timer"),
        ("Start a timer.", "Start a kitchen timer."),
        {"minutes": P(("minutes", "duration", "num_minutes"), INTEGER, integer(1, 90), "Minutes.")},
        (
            "Set a timer for {minutes} minutes.",
            "Start a {minutes} minute timer.",
            "Timer for {minutes} minutes, please.",
        ),
        ("Start a timer.", "Set a timer."),
        status,
        "The timer runs for {minutes} minutes.",
        True,
    ),
    Family(
        "currency",
        ("convert_currency", "exchange", "currency_convert"),
        ("Convert money.", "Convert an amount between currencies."),
        {
            "amount": P(("amount", "value", "sum"), NUMBER, decimal(1, 500), "How much."),
            "source": P(
                ("from", "source", "from_currency"),
                enum_schema("EUR", "USD", "GBP", "JPY"),
                one_of("EUR", "USD"),
                "Currency to convert from.",
            ),
            "target": P(
                ("to", "target", "to_currency"),
                enum_schema("EUR", "USD", "GBP", "JPY"),
                one_of("GBP", "JPY"),
                "Currency to convert to.",
            ),
        },
        (
            "Convert {amount} {source} to {target}.",
            "How much is {amount} {source} in {target}?",
            "Change {amount} {source} into {target}.",
        ),
        ("Convert some money.",),
        single_value("result", decimal(1, 900)),
        "{amount} {source} are {result} {target}.",
    ),
    Family(
        "event",
        ("create_event", "add_event", "schedule_meeting", "calendar_add"),
        ("Add an event to the calendar.", "Create a calendar event."),
        {
            "title": P(("title", "name", "event"), STRING, thing, "Title."),
            "date": P(("date", "day", "when"), STRING, date, "Date."),
            "people": P(
                ("people", "participants", "guests"),
                STRINGS,
                several(person, 1, 3),
                "Who comes.",
                " with {}",
            ),
        },
        (
            "Add the event {title} on {date}.",
            "Plan {title} on {date}.",
            "Put {title} in my calendar on {date}.",
        ),
        ("Add an event to my calendar.",),
        status,
        "{title} is planned for {date}.",
    ),
    Family(
        "music",
        ("play_music", "play_song", "music_play", "play"),
        ("Play a song.", "Play music."),
        {
            "song": P(("song", "title", "track"), STRING, thing, "Name of the song."),
            "volume": P(
                ("volume", "loudness"),
                INTEGER,
                integer(1, 100),
                "Volume in percent.",
                " at volume {}",
            ),
            "repeat": P(
                ("repeat", "loop"), BOOLEAN, one_of(True), "Repeat forever.", " again and again"
            ),
        },
        ("Play the song {song}.", "Play {song}.", "I want to hear {song}."),
        ("Play some music.",),
        status,
        "Now playing {song}.",
    ),
    Family(
        "light",
        ("set_light", "switch_light", "light_control", "control_light"),
        ("Switch a light.", "Turn the light of a room on or off."),
        {
            "room": P(("room", "where", "location"), STRING, _ROOMS, "Which room."),
            "on": P(("on", "state", "power"), BOOLEAN, one_of(True, False), "True for on."),
        },
        (
            "Turn {on} the light in the {room}.",
            "Turn the {room} light {on}.",
            "Switch {on} the light in the {room}.",
            "Light {on} in the {room}, please.",
        ),
        ("Turn on the light.",),
        status,
        "The light in the {room} is {on}.",
        True,
    ),
    Family(
        "stock",
        ("get_stock_price", "stock_price", "stock_quote", "get_quote"),
        ("Get the price of a stock.", "Price of a share."),
        {"symbol": P(("symbol", "ticker", "stock"), STRING, symbol, "Ticker symbol.")},
        (
            "What is the price of {symbol}?",
            "Stock price of {symbol}?",
            "How much is one share of {symbol}?",
            "Get me the price of {symbol} stock.",
        ),
        ("What is the stock price?",),
        single_value("price", decimal(5, 900)),
        "{symbol} costs {price}.",
        True,
    ),
    Family(
        "translate",
        ("translate", "translate_text", "translator"),
        ("Translate a text.",),
        {
            "text": P(("text", "phrase", "input"), STRING, phrase, "Text to translate."),
            "language": P(
                ("language", "target", "target_language"),
                enum_schema("french", "german", "spanish", "italian"),
                one_of("french", "german", "spanish", "italian"),
                "Language to translate into.",
            ),
        },
        (
            'Translate "{text}" to {language}.',
            'Translate "{text}" into {language}.',
            'How do you say "{text}" in {language}?',
        ),
        ("Translate a text.",),
        single_value("translation", made_up),
        "In {language} it is: {translation}.",
    ),
    Family(
        "note",
        ("create_note", "save_note", "add_note", "write_note"),
        ("Save a note.", "Write a note."),
        {
            "text": P(("text", "content", "note", "body"), STRING, phrase, "What to note."),
            "tags": P(
                ("tags", "labels"),
                STRINGS,
                several(one_of(*WORDS), 1, 3),
                "Tags.",
                " with the tags {}",
            ),
        },
        ('Save the note "{text}".', 'Note down "{text}".', 'Write a note "{text}".'),
        ("Save a note.",),
        lambda rng: {"status": "saved", "id": rng.randint(1, 999)},
        "The note is saved with id {id}.",
    ),
    Family(
        "table",
        ("book_table", "reserve_table", "reserve", "table_booking"),
        ("Book a table.", "Reserve a table in a restaurant."),
        {
            "restaurant": P(
                ("restaurant", "place", "name"),
                STRING,
                lambda rng: made_up(rng).capitalize(),
                "Restaurant.",
            ),
            "people": P(
                ("people", "guests", "party_size"), INTEGER, integer(2, 12), "Number of guests."
            ),
            "time": P(("time", "at"), STRING, clock, "Time."),
        },
        (
            "Book a table at {restaurant} for {people} people at {time}.",
            "Reserve a table for {people} at {restaurant} at {time}.",
        ),
        ("Book a table.",),
        single_value("confirmation", code),
        "Your table at {restaurant} is booked: {confirmation}.",
    ),
)
