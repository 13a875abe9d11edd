"""One Triton request's inputs, checked and turned into what the engine and the tokenizer need.

Works on plain lists of values, so it runs without Triton. Triton itself checks little: numbers that
overflow arrive wrapped, inputs may be missing, and keys of an HTTP body that match no input become
parameters. Whatever was given is used or refused here, never ignored.
"""

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from beam_trt.errors import RequestError
from beam_trt.runtime.request import SamplingParams
from beam_trt.serving.answer import GenerateRequest
from beam_trt.serving.chat import ChatRequest
from beam_trt.triton.tensors import (
    INPUT_BY_NAME,
    OUTPUTS,
    STREAMING_MODEL,
    UNARY_MODEL,
    InputSpec,
    inputs_meaning,
)

# What Triton's own protocols send as parameters of a request, whatever the model.
_PROTOCOL_PARAMETERS = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout"}
    | {"binary_data_output", "binary_data", "binary_data_size", "classification"}
    | {"triton_enable_empty_final_response", "headers", "id"}
)


@dataclass(frozen=True, slots=True)
class TritonRequest:
    """A checked request, and how its responses are wanted. `asked` holds the return_* inputs that
    were true."""

    generate: GenerateRequest
    streaming: bool
    exclude_input: bool
    asked: frozenset[str]


def read_inputs(
    inputs: Mapping[str, list[Any]], parameters: Mapping[str, Any], can_stream: bool
) -> TritonRequest:
    """Check one request: `inputs` name -> flat list of Python values (STRING as bytes or str),
    `parameters` as Triton hands them over. Raises RequestError naming the input, what was expected
    and what was given."""
    fields = _fields({**inputs, **_parameters_as_inputs(inputs, parameters)})
    streaming = fields.get("streaming", False)
    if streaming and not can_stream:
        raise RequestError(
            f"streaming: model {UNARY_MODEL} answers once. Send streaming requests to model "
            f"{STREAMING_MODEL} (gRPC streaming or HTTP /generate_stream)."
        )
    input_ids = fields.get("input_ids")
    request = GenerateRequest(
        text=fields.get("text"),
        input_ids=None if input_ids is None else tuple(input_ids),
        chat=_chat(fields),
        sampling=_sampling(fields),
        stop_strings=tuple(stop for stop in fields.get("stop", ()) if stop),
        skip_special_tokens=fields.get("skip_special_tokens"),
        fit_max_tokens="max_tokens" not in fields,
    )
    asked = {name for name in fields if name.startswith("return_") and fields[name]}
    if fields.get("return_finish_reason", True):
        asked.add("return_finish_reason")
    return TritonRequest(
        generate=request,
        streaming=streaming,
        # TensorRT-LLM's unary models echo the prompt unless told; streams never do. Here: never.
        exclude_input=fields.get("exclude_input", True),
        asked=frozenset(asked),
    )


def generate_to_inputs(request: GenerateRequest, streaming: bool) -> dict[str, list[Any]]:
    """What a client sends for `request`, asking for every output. Inverse of `read_inputs`."""
    sampling = request.sampling
    inputs: dict[str, list[Any]] = {
        "sampling_param_temperature": [sampling.temperature],
        "sampling_param_top_p": [sampling.top_p],
        "streaming": [streaming],
    }
    if request.text is not None:
        inputs["text_input"] = [request.text]
    if request.input_ids is not None:
        inputs["input_ids"] = list(request.input_ids)
    if request.chat is not None:
        inputs |= _chat_inputs(request.chat)
    optional = {
        "sampling_param_max_tokens": None if request.fit_max_tokens else sampling.max_tokens,
        "sampling_param_top_k": sampling.top_k,
        "sampling_param_seed": sampling.seed,
        "sampling_param_ignore_eos": sampling.ignore_eos or None,
        "sampling_param_min_tokens": sampling.min_tokens or None,
        "sampling_param_skip_special_tokens": request.skip_special_tokens,
    }
    inputs |= {name: [value] for name, value in optional.items() if value is not None}
    if request.stop_strings:
        inputs["sampling_param_stop"] = list(request.stop_strings)
    if sampling.stop_token_ids:
        inputs["sampling_param_stop_token_ids"] = list(sampling.stop_token_ids)
    wanted = {spec.asked_by for spec in OUTPUTS if spec.asked_by is not None}
    if not sampling.logprobs:
        wanted -= {"return_log_probs", "return_cumulative_logprob"}
    return inputs | {name: [True] for name in sorted(wanted)}


def _chat_inputs(chat: ChatRequest) -> dict[str, list[Any]]:
    inputs = {"messages": [json.dumps(chat.messages, ensure_ascii=False)]}
    if chat.tools:
        inputs["tools"] = [json.dumps(chat.tools, ensure_ascii=False)]
    if chat.reasoning_effort is not None:
        inputs["reasoning_effort"] = [chat.reasoning_effort]
    if chat.template_kwargs:
        inputs["chat_template_kwargs"] = [json.dumps(chat.template_kwargs, ensure_ascii=False)]
    return inputs


def _parameters_as_inputs(
    inputs: Mapping[str, list[Any]], parameters: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Parameters that carry an input's name, as clients of vLLM's Triton model send them."""
    taken = {}
    for name, value in parameters.items():
        if name in INPUT_BY_NAME and name not in inputs:
            taken[name] = value if isinstance(value, list) else [value]
        elif name not in _PROTOCOL_PARAMETERS and not name.startswith("triton_"):
            raise RequestError(f"{name}: no such input or parameter.{_did_you_mean(name)}")
    return taken


def _did_you_mean(name: str) -> str:
    close = difflib.get_close_matches(name, INPUT_BY_NAME, n=1)
    return f" Did you mean {close[0]}?" if close else " See the model's config for its inputs."


def _fields(inputs: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Field -> value, of every input that asks for something."""
    fields: dict[str, Any] = {}
    source: dict[str, str] = {}
    for name, raw in inputs.items():
        spec = INPUT_BY_NAME.get(name)
        if spec is None:
            raise RequestError(f"{name}: no such input.{_did_you_mean(name)}")
        values = [_value(spec, value) for value in raw]
        if spec.neutral is not None:
            _refuse_unsupported(spec, values)
            continue
        if not spec.is_list and len(values) != 1:
            raise RequestError(f"{name}: expected one value, got {len(values)}.")
        value = values if spec.is_list else values[0]
        if spec.means in fields and fields[spec.means] != value:
            raise RequestError(
                f"{name}: {value!r} disagrees with {source[spec.means]} "
                f"{fields[spec.means]!r}, which means the same. Send one of them."
            )
        fields[spec.means], source[spec.means] = value, name
    return fields


def _value(spec: InputSpec, value: Any) -> Any:
    kinds: dict[str, type] = {"STRING": str, "BOOL": bool, "FP32": float}
    expected = kinds.get(spec.dtype, int)
    if expected is float and isinstance(value, int):  # a JSON parameter such as 1
        value = value if isinstance(value, bool) else float(value)
    if spec.dtype == "STRING" and isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise RequestError(f"{spec.name}: expected UTF-8 text: {error}.") from error
    is_bool = isinstance(value, bool)
    if not isinstance(value, expected) or (is_bool and spec.dtype != "BOOL"):
        raise RequestError(f"{spec.name}: expected {spec.dtype}, got {value!r}.")
    return value


def _refuse_unsupported(spec: InputSpec, values: Iterable[Any]) -> None:
    neutral = spec.neutral or ()
    for value in values:
        if value not in neutral:
            only = f" Leave it out or send {neutral[0]!r}." if neutral else " Leave it out."
            raise RequestError(
                f"{spec.name}: this engine does not support it, got {value!r}.{only}"
            )


def _chat(fields: Mapping[str, Any]) -> ChatRequest | None:
    messages = _json(fields, "messages", list)
    if messages is None:
        for field in ("tools", "reasoning_effort", "template_kwargs"):
            if field in fields:
                raise RequestError(
                    f"{inputs_meaning(field)[0]}: belongs to a chat, and there are no messages. "
                    "Send messages instead of text_input or input_ids."
                )
        return None
    return ChatRequest(
        messages=tuple(messages),
        tools=tuple(_json(fields, "tools", list) or ()),
        reasoning_effort=fields.get("reasoning_effort"),
        template_kwargs=_json(fields, "template_kwargs", dict) or {},
    )


def _json(fields: Mapping[str, Any], field: str, kind: type) -> Any:
    text = fields.get(field)
    if text is None:
        return None
    name = inputs_meaning(field)[0]
    wanted = "list" if kind is list else "object"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name}: expected a JSON {wanted}: {error}.") from error
    if not isinstance(value, kind):
        raise RequestError(f"{name}: expected a JSON {wanted}, got {type(value).__name__}.")
    return value


def _sampling(fields: Mapping[str, Any]) -> SamplingParams:
    values = {
        name: fields[name]
        for name in ("max_tokens", "temperature", "top_p", "seed", "ignore_eos", "min_tokens")
        if name in fields
    }
    stop_token_ids = tuple(fields.get("stop_token_ids", ()))
    # TensorRT-LLM's end_id replaces the model's own end; -1 is its clients' way to leave it out.
    if fields.get("end_id", -1) != -1:
        stop_token_ids, values["ignore_eos"] = (*stop_token_ids, fields["end_id"]), True
    if fields.get("top_k", 0) != 0:  # 0 keeps every token
        values["top_k"] = fields["top_k"]
    wants_logprobs = fields.get("return_log_probs") or fields.get("return_cumulative_logprob")
    return SamplingParams(**values, stop_token_ids=stop_token_ids, logprobs=bool(wants_logprobs))
