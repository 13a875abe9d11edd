"""From pieces of an answer to the values of Triton's outputs, and back for the clients."""

import json
from collections.abc import Mapping
from typing import Any

from beam_trt.runtime.request import Timings, Usage
from beam_trt.serving.answer import Ending, Piece
from beam_trt.triton.tensors import OUTPUTS

Values = dict[str, list[Any]]
"""Output name -> its flat list of values; STRING as str."""


def piece_to_values(piece: Piece, is_chat: bool, asked: frozenset[str], echo: str = "") -> Values:
    """Outputs of one response: those always there and those whose return_* input is in `asked`.
    `echo` goes before the text."""
    values: Values = {"text_output": [echo + piece.text]}
    if is_chat:
        values |= {"reasoning": [piece.reasoning], "content": [piece.content]}
    values["output_ids"] = list(piece.token_ids)
    values["output_log_probs"] = list(piece.logprobs)
    if piece.ending is not None:
        values |= _ending_values(piece.ending, is_chat)
    return {
        spec.name: values[spec.name]
        for spec in OUTPUTS
        if spec.name in values and (spec.asked_by is None or spec.asked_by in asked)
    }


def _ending_values(ending: Ending, is_chat: bool) -> Values:
    values: Values = {
        "finish_reason": [ending.finish_reason],
        "stop_reason": [ending.stop_reason],
    }
    if is_chat:
        values["tool_calls"] = [json.dumps(ending.tool_calls, ensure_ascii=False)]
    if ending.cumulative_logprob is not None:
        values["cumulative_logprob"] = [ending.cumulative_logprob]
    if ending.usage is not None:
        values["num_input_tokens"] = [ending.usage.prompt_tokens]
        values["num_output_tokens"] = [ending.usage.generated_tokens]
        values["num_reused_tokens"] = [ending.usage.reused_tokens]
    if ending.timings is not None:
        times = ending.timings
        values["arrival_time_ns"] = [times.arrival]
        values["first_scheduled_time_ns"] = [times.first_scheduled or 0]
        values["first_token_time_ns"] = [times.first_token or 0]
        values["last_token_time_ns"] = [times.last_token or 0]
    return values


def piece_from_values(values: Mapping[str, list[Any]]) -> Piece:
    """Inverse of `piece_to_values`, for responses to a request that asked for everything; what was
    not sent is empty or None. ValueError where tool_calls is no JSON."""
    ending = None
    if values.get("finish_reason", [""])[0]:
        ending = Ending(
            finish_reason=values["finish_reason"][0],
            stop_reason=_one(values, "stop_reason", ""),
            tool_calls=tuple(json.loads(_one(values, "tool_calls", "[]"))),
            cumulative_logprob=values.get("cumulative_logprob", [None])[0],
            usage=_usage(values),
            timings=_timings(values),
        )
    return Piece(
        text=_one(values, "text_output", ""),
        reasoning=_one(values, "reasoning", ""),
        content=_one(values, "content", ""),
        token_ids=tuple(values.get("output_ids", ())),
        logprobs=tuple(values.get("output_log_probs", ())),
        ending=ending,
    )


def _one(values: Mapping[str, list[Any]], name: str, default: str) -> str:
    return str(values[name][0]) if values.get(name) else default


def _usage(values: Mapping[str, list[Any]]) -> Usage | None:
    names = ("num_input_tokens", "num_output_tokens", "num_reused_tokens")
    if not all(name in values for name in names):
        return None
    return Usage(*(int(values[name][0]) for name in names))


def _timings(values: Mapping[str, list[Any]]) -> Timings | None:
    names = ("arrival", "first_scheduled", "first_token", "last_token")
    found = [values.get(f"{name}_time_ns") for name in names]
    if not all(found):
        return None
    arrival, *others = (int(value[0]) for value in found if value)
    return Timings(arrival, *(other or None for other in others))
