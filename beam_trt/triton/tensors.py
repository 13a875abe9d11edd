"""Every input and output of the Triton models, declared once: name, type, shape and meaning.

config.pbtxt, the models, the clients and the tests all read these tables. Names and types are
those of TensorRT-LLM's `llmapi` model, with its older ensemble's names as aliases, so clients
written for either work unchanged; a few more carry chats and token counts.
"""

from dataclasses import dataclass
from typing import Literal

STREAMING_MODEL = "beam"
"""Decoupled: any number of responses a request."""

UNARY_MODEL = "beam_sync"
"""The non-decoupled twin, for plain infer and HTTP /generate: exactly one response a request."""

DType = Literal["STRING", "BOOL", "INT32", "INT64", "UINT64", "FP32"]

NUMPY_DTYPES: dict[str, str] = {
    "STRING": "object",
    "BOOL": "bool",
    "INT32": "int32",
    "INT64": "int64",
    "UINT64": "uint64",
    "FP32": "float32",
}
"""Triton type without its TYPE_ prefix -> numpy dtype name. On the wire STRING is called BYTES."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input, always optional to Triton so that the model itself can say what is missing.

    is_list: shape [-1] instead of [1]. means: the field it sets; several names may set one field,
    and giving two that disagree is an error. neutral: for what this engine does not do, the values
    that ask for nothing; any other is refused. None: supported.
    """

    name: str
    dtype: DType
    means: str
    is_list: bool = False
    neutral: tuple[object, ...] | None = None


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One output. asked_by: the return_* input that includes it; None: always there."""

    name: str
    dtype: DType
    asked_by: str | None = None
    is_list: bool = False


def _unsupported(name: str, dtype: DType, *neutral: object, is_list: bool = False) -> InputSpec:
    return InputSpec(name, dtype, name, is_list, neutral)


INPUTS: tuple[InputSpec, ...] = (
    # The prompt: one of these three.
    InputSpec("text_input", "STRING", "text"),
    InputSpec("input_ids", "INT32", "input_ids", is_list=True),
    InputSpec("messages", "STRING", "messages"),  # JSON list, as in OpenAI's chat API
    # What a chat prompt is rendered with.
    InputSpec("tools", "STRING", "tools"),  # JSON list
    InputSpec("reasoning_effort", "STRING", "reasoning_effort"),
    InputSpec("chat_template_kwargs", "STRING", "template_kwargs"),  # JSON object
    # Sampling.
    InputSpec("sampling_param_max_tokens", "INT32", "max_tokens"),
    InputSpec("max_tokens", "INT32", "max_tokens"),
    InputSpec("sampling_param_temperature", "FP32", "temperature"),
    InputSpec("temperature", "FP32", "temperature"),
    InputSpec("sampling_param_top_k", "INT32", "top_k"),
    InputSpec("top_k", "INT32", "top_k"),
    InputSpec("sampling_param_top_p", "FP32", "top_p"),
    InputSpec("top_p", "FP32", "top_p"),
    InputSpec("sampling_param_seed", "UINT64", "seed"),
    InputSpec("seed", "UINT64", "seed"),
    InputSpec("random_seed", "UINT64", "seed"),
    InputSpec("sampling_param_stop", "STRING", "stop", is_list=True),
    InputSpec("stop_words", "STRING", "stop", is_list=True),
    InputSpec("sampling_param_stop_token_ids", "INT32", "stop_token_ids", is_list=True),
    InputSpec("end_id", "INT32", "end_id"),
    InputSpec("sampling_param_ignore_eos", "BOOL", "ignore_eos"),
    InputSpec("sampling_param_min_tokens", "INT32", "min_tokens"),
    InputSpec("min_length", "INT32", "min_tokens"),
    # The response.
    InputSpec("streaming", "BOOL", "streaming"),
    InputSpec("stream", "BOOL", "streaming"),
    InputSpec("sampling_param_exclude_input_from_output", "BOOL", "exclude_input"),
    InputSpec("exclude_input_in_output", "BOOL", "exclude_input"),
    InputSpec("sampling_param_skip_special_tokens", "BOOL", "skip_special_tokens"),
    InputSpec("sampling_param_return_perf_metrics", "BOOL", "return_perf_metrics"),
    InputSpec("return_perf_metrics", "BOOL", "return_perf_metrics"),
    InputSpec("return_finish_reason", "BOOL", "return_finish_reason"),
    InputSpec("return_stop_reason", "BOOL", "return_stop_reason"),
    InputSpec("return_cumulative_logprob", "BOOL", "return_cumulative_logprob"),
    InputSpec("return_log_probs", "BOOL", "return_log_probs"),
    InputSpec("return_output_ids", "BOOL", "return_output_ids"),
    InputSpec("return_num_input_tokens", "BOOL", "return_num_input_tokens"),
    InputSpec("return_num_output_tokens", "BOOL", "return_num_output_tokens"),
    # Named by TensorRT-LLM, not done by this engine: refused unless they ask for nothing.
    _unsupported("stop", "BOOL", False),
    _unsupported("sampling_param_best_of", "INT32", 1),
    _unsupported("beam_width", "INT32", 1),
    _unsupported("sampling_param_frequency_penalty", "FP32", 0.0),
    _unsupported("frequency_penalty", "FP32", 0.0),
    _unsupported("sampling_param_presence_penalty", "FP32", 0.0),
    _unsupported("presence_penalty", "FP32", 0.0),
    _unsupported("repetition_penalty", "FP32", 1.0),
    _unsupported("length_penalty", "FP32", 0.0, 1.0),
    _unsupported("bad_words", "STRING", "", is_list=True),
    _unsupported("return_context_logits", "BOOL", False),
    _unsupported("return_generation_logits", "BOOL", False),
    _unsupported("image_url", "STRING", is_list=True),
    _unsupported("lora_id", "UINT64"),
    _unsupported("lora_name", "STRING"),
    _unsupported("lora_path", "STRING"),
    _unsupported("lora_ckpt_source", "STRING"),
    # Nothing is padded here, so any value asks for nothing.
    InputSpec("pad_id", "INT32", "pad_id"),
)

OUTPUTS: tuple[OutputSpec, ...] = (
    # New text since the previous response; of a chat, as generated, with special tokens.
    OutputSpec("text_output", "STRING"),
    # Of a chat: new reasoning and new answer; and on the last response all tool calls as JSON.
    OutputSpec("reasoning", "STRING"),
    OutputSpec("content", "STRING"),
    OutputSpec("tool_calls", "STRING"),
    # New token ids, with the token that stopped the request; natural-log probabilities of them.
    OutputSpec("output_ids", "INT32", "return_output_ids", is_list=True),
    OutputSpec("output_log_probs", "FP32", "return_log_probs", is_list=True),
    # Everything below is on the last response only.
    OutputSpec("finish_reason", "STRING", "return_finish_reason"),
    OutputSpec("stop_reason", "STRING", "return_stop_reason"),
    OutputSpec("cumulative_logprob", "FP32", "return_cumulative_logprob"),
    OutputSpec("num_input_tokens", "INT32", "return_num_input_tokens"),
    OutputSpec("num_output_tokens", "INT32", "return_num_output_tokens"),
    OutputSpec("num_reused_tokens", "INT32", "return_num_input_tokens"),
    # time.time_ns of the engine host.
    OutputSpec("arrival_time_ns", "INT64", "return_perf_metrics"),
    OutputSpec("first_scheduled_time_ns", "INT64", "return_perf_metrics"),
    OutputSpec("first_token_time_ns", "INT64", "return_perf_metrics"),
    OutputSpec("last_token_time_ns", "INT64", "return_perf_metrics"),
)

INPUT_BY_NAME = {spec.name: spec for spec in INPUTS}
OUTPUT_BY_NAME = {spec.name: spec for spec in OUTPUTS}


def inputs_meaning(field: str) -> tuple[str, ...]:
    """Names that set `field`, the preferred one first."""
    return tuple(spec.name for spec in INPUTS if spec.means == field)
