"""What every client of a server has in common: pieces of an answer until its ending, an idle limit,
and errors that keep what came before them."""

from beam_trt.errors import ServerError
from beam_trt.serving.answer import Answer, Piece

DEFAULT_IDLE_TIMEOUT_S = 300.0
"""Longest silence of a server within one request, its first token included."""


class StreamError(ServerError):
    """A server that failed or went away within an answer; `partial` is what had come by then."""

    def __init__(self, message: str, partial: Answer) -> None:
        super().__init__(message)
        self.partial = partial


def stream_error(url: str, what: str, pieces: list[Piece]) -> ServerError:
    """The error for `what` happened to a stream after `pieces`."""
    what = what.rstrip(".") + "."
    answer = Answer.join(pieces)
    if not answer.token_ids and not answer.text:
        return ServerError(f"{url}: {what}")
    return StreamError(
        f"{url}: {what} This happened after {len(answer.token_ids)} tokens; "
        "the text so far is kept.",
        answer,
    )
