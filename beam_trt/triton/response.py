"""From the engine's outputs to the values of Triton responses, for one request.

Pure: takes RequestOutputs, gives output name -> list of values; knows no Triton and no threads.
"""

import json
from dataclasses import dataclass
from typing import Any

from beam_trt.errors import RequestError
from beam_trt.runtime.request import Request, RequestLimits, RequestOutput
from beam_trt.serving.chat import ChatFormat, ChatStream
from beam_trt.serving.text import IncrementalDetokenizer, Tokenizer
from beam_trt.triton.inputs import GenerateInputs
from beam_trt.triton.tensors import OUTPUTS

Values = dict[str, list[Any]]
"""Output name -> its values, in the order of the output table."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's prompt as the engine gets it and as a reader sees it."""

    token_ids: tuple[int, ...]
    text: str


def make_prompt(inputs: GenerateInputs, tokenizer: Tokenizer, chat: ChatFormat) -> Prompt:
    """Render and tokenize whatever kind of prompt was given. RequestError where the template
    refuses or the text is empty."""
    if inputs.chat is not None:
        text = chat.render(inputs.chat)
        return Prompt(tokenizer.encode(text, add_special_tokens=False), text)
    if inputs.text is not None:
        return Prompt(tokenizer.encode(inputs.text), inputs.text)
    assert inputs.input_ids is not None, inputs
    # Out-of-range ids are the engine's to refuse, they only must not break the echo's decoding.
    known = [i for i in inputs.input_ids if i >= 0] if not inputs.exclude_input else []
    return Prompt(inputs.input_ids, tokenizer.decode(known, skip_special_tokens=False))


class ResponseBuilder:
    """Grows one answer from the engine's outputs and says what each response carries.

    A stop string is found here, token by token, however many tokens an output brings; then
    `stopped_early` tells the caller to cancel the request in the engine. `finish_reason` is set
    once the answer is complete.
    """

    def __init__(
        self, inputs: GenerateInputs, prompt: Prompt, tokenizer: Tokenizer, chat: ChatFormat
    ) -> None:
        self._inputs = inputs
        self._prompt = prompt
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            stop_strings=inputs.stop_strings,
            skip_special_tokens=inputs.skip_special_tokens,
        )
        self._parser: ChatStream | None = None
        if inputs.chat is not None:
            if inputs.skip_special_tokens:
                raise RequestError(
                    "sampling_param_skip_special_tokens: a chat's answer is parsed by its special "
                    "tokens, got True. Leave it out and read the content output."
                )
            self._parser = chat.stream(prompt.text, inputs.chat.tools)
        self._echo = "" if inputs.exclude_input else prompt.text
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._num_tokens = 0
        self._sum_logprobs = 0.0
        self.finish_reason: str | None = None
        self.stop_reason = ""
        self.stopped_early = False

    def request(self, request_id: str, limits: RequestLimits) -> Request:
        """The engine's request; RequestError where it can never run."""
        request = Request(request_id, self._prompt.token_ids, self._inputs.sampling)
        limits.check(request)
        return request

    def advance(self, outputs: list[RequestOutput]) -> Values | None:
        """Values of the next response, or None while there is nothing to send. Several outputs
        make one response. `outputs` holds none with finish_reason "cancelled" or "error"."""
        assert self.finish_reason is None, self.finish_reason
        for output in outputs:
            self._take(output)
            if self.finish_reason is not None:
                return self._flush(output)
        has_ids = bool(self._token_ids) and "return_output_ids" in self._inputs.asked
        if self._inputs.streaming and (self._text or has_ids):
            return self._flush(None)
        return None

    def _take(self, output: RequestOutput) -> None:
        stop_at = len(output.token_ids) - 1 if output.stop_token_id is not None else None
        for at, token_id in enumerate(output.token_ids):
            self._token_ids.append(token_id)
            self._num_tokens += 1
            if output.logprobs is not None:
                self._logprobs.append(output.logprobs[at])
                self._sum_logprobs += output.logprobs[at]
            if at != stop_at:  # the token that ends the request is no text
                self._text += self._detokenizer.feed(token_id)
            if self._detokenizer.stopped_by is not None:
                self._stop(early=not output.is_last)
                return
        if output.is_last:
            self._text += self._detokenizer.finish()
            self.finish_reason = output.finish_reason
            if output.stop_token_id is not None:
                self.stop_reason = str(output.stop_token_id)
            if self._detokenizer.stopped_by is not None:
                self._stop(early=False)

    def _stop(self, early: bool) -> None:
        self.finish_reason, self.stopped_early = "stop", early
        self.stop_reason = self._detokenizer.stopped_by or ""

    def _flush(self, last: RequestOutput | None) -> Values:
        values: Values = {"text_output": [self._echo + self._text]}
        if self._parser is not None:
            values |= _chat_values(self._parser, self._text, is_last=last is not None)
        values["output_ids"] = list(self._token_ids)
        values["output_log_probs"] = list(self._logprobs)
        if last is not None:
            values |= self._last_values(last)
        self._echo = self._text = ""
        self._token_ids.clear()
        self._logprobs.clear()
        asked = self._inputs.asked
        return {
            spec.name: values[spec.name]
            for spec in OUTPUTS
            if spec.name in values and (spec.asked_by is None or spec.asked_by in asked)
        }

    def _last_values(self, last: RequestOutput) -> Values:
        timings = last.timings
        return {
            "finish_reason": [self.finish_reason],
            "stop_reason": [self.stop_reason],
            "cumulative_logprob": [self._sum_logprobs],
            "num_input_tokens": [last.usage.prompt_tokens],
            "num_output_tokens": [self._num_tokens],
            "num_reused_tokens": [last.usage.reused_tokens],
            "arrival_time_ns": [timings.arrival],
            "first_scheduled_time_ns": [timings.first_scheduled or 0],
            "first_token_time_ns": [timings.first_token or 0],
            "last_token_time_ns": [timings.last_token or 0],
        }


def _chat_values(parser: ChatStream, text: str, is_last: bool) -> Values:
    delta = parser.feed(text)
    reasoning, content = delta.reasoning, delta.content
    values: Values = {}
    if is_last:
        rest = parser.finish()
        reasoning, content = reasoning + rest.reasoning, content + rest.content
        calls = parser.message.tool_calls
        values["tool_calls"] = [json.dumps(calls, ensure_ascii=False)]
    return values | {"reasoning": [reasoning], "content": [content]}
