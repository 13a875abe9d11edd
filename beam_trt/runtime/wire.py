"""Requests and outputs as plain JSON values, for the socket between the engine host and clients.

One message is one line of JSON. Both sides run the same version: the handshake carries PROTOCOL.
"""

import json
from dataclasses import asdict
from typing import Any

from beam_trt.errors import RequestError
from beam_trt.runtime.request import Request, RequestOutput, SamplingParams, Timings, Usage

PROTOCOL = 1
"""Version of the messages; host and client refuse each other when it differs."""


def encode(message: dict[str, Any]) -> bytes:
    """One message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Inverse of `encode`. Raises ValueError when the line is not a JSON object."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"expected a JSON object, found {type(message).__name__}")
    return message


def request_to_dict(request: Request) -> dict[str, Any]:
    return {
        "request_id": request.request_id,
        "prompt_ids": request.prompt_ids,
        "sampling": {name: getattr(request.sampling, name) for name in _SAMPLING_FIELDS},
    }


def request_from_dict(values: dict[str, Any]) -> Request:
    """Raises RequestError where a field is missing, unknown or out of range."""
    try:
        sampling = dict(values["sampling"])
        sampling["stop_token_ids"] = tuple(sampling.get("stop_token_ids", ()))
        return Request(
            request_id=str(values["request_id"]),
            prompt_ids=tuple(values["prompt_ids"]),
            sampling=SamplingParams(**sampling),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"request: cannot be read: {error!r}.") from error


def output_to_dict(output: RequestOutput) -> dict[str, Any]:
    return asdict(output)


def output_from_dict(values: dict[str, Any]) -> RequestOutput:
    logprobs = values["logprobs"]
    return RequestOutput(
        **{
            **values,
            "token_ids": tuple(values["token_ids"]),
            "logprobs": None if logprobs is None else tuple(logprobs),
            "usage": Usage(**values["usage"]),
            "timings": Timings(**values["timings"]),
        }
    )


_SAMPLING_FIELDS = tuple(SamplingParams.__dataclass_fields__)
