"""Tool families of work with data, text and machines."""

from .tool_family import Family, Parameter
from .tool_values import (
    BOOLEAN,
    INTEGER,
    INTEGERS,
    NUMBER,
    STRING,
    STRINGS,
    code,
    decimal,
    enum_schema,
    integer,
    one_of,
    path,
    record,
    record_schema,
    several,
    single_value,
    status,
)
from .words import ITEMS, WORDS, made_up, person, phrase, place, thing

P = Parameter
_ROOMS = one_of(
    "kitchen", "bedroom", "office", "garage", "hall", "bathroom", "living room", "cellar"
)

WORK = (
    Family(
        "calculator",
        ("calculate", "calculator", "evaluate", "compute"),
        ("Evaluate an expression.", "A calculator."),
        {
            "expression": P(
                ("expression", "formula", "input"),
                STRING,
                lambda rng: f"{rng.randint(1, 999)} {rng.choice('+-*/')} {rng.randint(1, 999)}",
                "What to compute.",
            )
        },
        (
            "Use the calculator for {expression}.",
            "Calculate {expression} with the tool.",
            "Let the calculator compute {expression}.",
        ),
        ("Use the calculator.",),
        single_value("value", decimal(1, 900)),
        "The calculator says {value}.",
        True,
    ),
    Family(
        "shopping",
        ("add_to_cart", "add_items", "shopping_list_add", "buy"),
        ("Add items to the shopping list.", "Put things on a list."),
        {
            "items": P(
                ("items", "products", "things"),
                STRINGS,
                several(one_of(*ITEMS, *WORDS), 1, 4),
                "What to add.",
            )
        },
        (
            "Add {items} to my shopping list.",
            "Put {items} on the shopping list.",
            "I need to buy {items}.",
        ),
        ("Add something to my shopping list.",),
        single_value("count", integer(1, 30)),
        "The list now has {count} items.",
    ),
    Family(
        "user",
        ("get_user", "find_user", "user_info", "load_user"),
        ("Get a user by number.", "Load a user."),
        {"id": P(("id", "user_id", "number"), INTEGER, integer(1, 9999), "Number of the user.")},
        (
            "Who is user {id}?",
            "Get user {id}.",
            "Show me the user with number {id}.",
            "Load user {id}.",
        ),
        ("Get a user.",),
        single_value("name", person),
        "User {id} is {name}.",
        True,
    ),
    Family(
        "files",
        ("list_files", "list_directory", "ls", "show_files"),
        ("List the files in a folder.", "Show a folder."),
        {
            "path": P(("path", "folder", "directory"), STRING, path, "Path of the folder."),
            "recursive": P(
                ("recursive", "deep"),
                BOOLEAN,
                one_of(True),
                "Include subfolders.",
                " with all subfolders",
            ),
        },
        ("List the files in {path}.", "Which files are in {path}?", "Show me the folder {path}."),
        ("List the files.",),
        single_value("files", several(lambda rng: rng.choice(WORDS) + ".txt", 1, 3)),
        "The folder holds {files}.",
    ),
    Family(
        "search",
        ("search", "web_search", "search_web", "find"),
        ("Search the web.", "Search for a text."),
        {
            "query": P(("query", "q", "text"), STRING, phrase, "What to search."),
            "limit": P(
                ("limit", "max_results", "count"),
                INTEGER,
                integer(1, 50),
                "How many results.",
                " and show {} results",
            ),
        },
        ("Search for {query}.", "Search the web for {query}.", "Look up {query}."),
        ("Search the web.",),
        single_value("hits", integer(0, 900)),
        "The search found {hits} results.",
    ),
    Family(
        "money",
        ("send_money", "transfer_money", "pay", "transfer"),
        ("Send money to a person.", "Make a payment."),
        {
            "to": P(("to", "recipient", "payee"), STRING, person, "Who gets the money."),
            "amount": P(("amount", "sum"), NUMBER, decimal(1, 300), "How much."),
            "currency": P(
                ("currency", "unit"),
                enum_schema("EUR", "USD", "GBP"),
                one_of("EUR", "USD", "GBP"),
                "Currency.",
            ),
        },
        (
            "Send {amount} {currency} to {to}.",
            "Pay {to} {amount} {currency}.",
            "Transfer {amount} {currency} to {to}.",
        ),
        ("Send some money.",),
        status,
        "{to} gets {amount} {currency}.",
    ),
    Family(
        "thermostat",
        ("set_temperature", "thermostat", "set_heating"),
        ("Set the temperature of a room.", "Control the heating."),
        {
            "room": P(("room", "zone", "where"), STRING, _ROOMS, "Which room."),
            "temperature": P(
                ("temperature", "degrees", "target"), NUMBER, decimal(15, 27), "Degrees."
            ),
        },
        (
            "Set the {room} to {temperature} degrees.",
            "Heat the {room} to {temperature} degrees.",
            "Make the {room} {temperature} degrees warm.",
        ),
        ("Change the temperature.",),
        status,
        "The {room} is set to {temperature} degrees.",
        True,
    ),
    Family(
        "parcel",
        ("ship_package", "send_parcel", "create_shipment"),
        ("Send a parcel.", "Ship a package to an address."),
        {
            "address": P(
                ("address", "to", "destination"),
                record_schema(street="string", number="integer", city="string"),
                record(
                    street=lambda rng: made_up(rng).capitalize(), number=integer(1, 99), city=place
                ),
                "Where to.",
            ),
            "express": P(
                ("express", "fast"), BOOLEAN, one_of(True), "Fast delivery.", " by express"
            ),
        },
        ("Ship a package to {address}.", "Send a parcel to {address}."),
        ("Send a parcel.",),
        single_value("tracking", code),
        "The parcel has the number {tracking}.",
    ),
    Family(
        "order",
        ("get_order", "order_status", "track_order", "find_order"),
        ("Get the state of an order.", "Track an order."),
        {"order": P(("order", "order_id", "code"), STRING, code, "Code of the order.")},
        (
            "Where is my order {order}?",
            "What is the status of order {order}?",
            "Track order {order}.",
            "Check the order {order}.",
        ),
        ("Where is my order?",),
        single_value("state", one_of("shipped", "delivered", "lost", "packed", "delayed")),
        "Order {order} is {state}.",
        True,
    ),
    Family(
        "draw",
        ("draw_point", "plot_point", "set_pixel"),
        ("Draw a point.",),
        {
            "point": P(
                ("point", "position"),
                record_schema(x="integer", y="integer"),
                record(x=integer(0, 200), y=integer(0, 200)),
                "Where.",
            ),
            "color": P(
                ("color", "colour"),
                enum_schema("red", "green", "blue"),
                one_of("red", "green", "blue"),
                "Color.",
                " in {}",
            ),
        },
        ("Draw a point at {point}.", "Put a point at {point}."),
        ("Draw a point.",),
        status,
        "The point is drawn.",
        True,
    ),
    Family(
        "average",
        ("average", "mean", "get_average"),
        ("Average of a list of numbers.",),
        {
            "numbers": P(
                ("numbers", "values", "data"),
                INTEGERS,
                several(integer(1, 99), 2, 5),
                "The numbers.",
            )
        },
        (
            "What is the average of {numbers}?",
            "Compute the average of {numbers}.",
            "Average {numbers}.",
        ),
        ("Compute an average.",),
        single_value("average", decimal(1, 99)),
        "The average is {average}.",
    ),
    Family(
        "rating",
        ("rate_movie", "add_rating", "rate"),
        ("Rate a movie.", "Save a rating."),
        {
            "movie": P(("movie", "title", "name"), STRING, thing, "The movie."),
            "stars": P(("stars", "rating", "score"), INTEGER, integer(1, 5), "One to five."),
        },
        (
            "Rate the movie {movie} with {stars} stars.",
            "Give {movie} {stars} stars.",
            "{stars} stars for the movie {movie}.",
        ),
        ("Rate a movie.",),
        status,
        "{movie} has {stars} stars now.",
    ),
)
