"""NVIDIA's own clients and plain HTTP against the real server: every way in, the same tokens as
the engine gives in process."""

import asyncio
import json
import queue
import re
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
from triton_serving import MAX_TOKENS, TEXTS

from beam_trt.runtime.local import GenerationResult
from beam_trt.triton.server import TritonServer
from beam_trt.triton.tensors import INPUTS, NUMPY_DTYPES, OUTPUTS, STREAMING_MODEL, UNARY_MODEL


def infer_inputs(module: Any, **values: list[Any]) -> list[Any]:
    """`values` by input name as tritonclient wants them, typed by the server's own table."""
    inputs = []
    for name, items in values.items():
        [dtype] = [spec.dtype for spec in INPUTS if spec.name == name]
        array = np.array(items, dtype=NUMPY_DTYPES[dtype])
        one = module.InferInput(name, list(array.shape), "BYTES" if dtype == "STRING" else dtype)
        one.set_data_from_numpy(array)
        inputs.append(one)
    return inputs


def text_of(results: list[Any]) -> str:
    return "".join(result.as_numpy("text_output")[0].decode() for result in results)


def ids_of(results: list[Any]) -> list[int]:
    return [int(i) for result in results for i in result.as_numpy("output_ids")]


def post(server: TritonServer, path: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(
        f"{server.http_url}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return bytes(response.read())


def refusal(server: TritonServer, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """Status and message of a request that must be refused."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(server, path, body)
    with caught.value as error:
        text = error.read().decode().removeprefix("data: ")
        return error.code, json.loads(text)["error"]


def test_sixteen_aio_streams_each_equal_their_local_run(
    server: TritonServer, greedy: list[GenerationResult], greedy_texts: list[str]
) -> None:
    async def one(client: Any, text: str) -> list[Any]:
        async def requests() -> Any:
            yield {
                "model_name": STREAMING_MODEL,
                "inputs": infer_inputs(
                    tritonclient.grpc.aio,
                    text_input=[text],
                    sampling_param_max_tokens=[MAX_TOKENS],
                    streaming=[True],
                    return_output_ids=[True],
                    return_stop_reason=[True],
                ),
            }

        results = []
        async for result, error in client.stream_infer(requests()):
            assert error is None, error
            results.append(result)
        return results

    async def all_at_once() -> list[list[Any]]:
        address = server.grpc_url.removeprefix("grpc://")
        async with tritonclient.grpc.aio.InferenceServerClient(address) as client:
            return list(await asyncio.gather(*(one(client, text) for text in TEXTS)))

    assert len(TEXTS) == 16
    streams = asyncio.run(all_at_once())
    for results, expected, text in zip(streams, greedy, greedy_texts, strict=True):
        assert ids_of(results) == list(expected.token_ids)
        assert text_of(results) == text
        finish = [r.as_numpy("finish_reason") for r in results]
        assert finish[:-1] == [None] * (len(results) - 1)
        assert finish[-1][0].decode() == expected.finish_reason
    assert max(len(results) for results in streams) > MAX_TOKENS / 2, "nothing was streamed"


def test_sync_grpc_stream(
    server: TritonServer, greedy: list[GenerationResult], greedy_texts: list[str]
) -> None:
    arrived: queue.Queue[Any] = queue.Queue()
    address = server.grpc_url.removeprefix("grpc://")
    with tritonclient.grpc.InferenceServerClient(address) as client:
        client.start_stream(callback=lambda result, error: arrived.put((result, error)))
        client.async_stream_infer(
            STREAMING_MODEL,
            # The names of TensorRT-LLM's older models.
            infer_inputs(
                tritonclient.grpc, text_input=[TEXTS[2]], max_tokens=[MAX_TOKENS], stream=[True]
            ),
            request_id="mine",
        )
        results = []
        while not results or results[-1].as_numpy("finish_reason") is None:
            result, error = arrived.get(timeout=120)
            assert error is None, error
            results.append(result)
        client.stop_stream()
    assert text_of(results) == greedy_texts[2]
    assert {result.get_response().id for result in results} == {"mine"}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_plain_infer_on_the_twin(
    server: TritonServer, greedy: list[GenerationResult], protocol: str
) -> None:
    module = {"grpc": tritonclient.grpc, "http": tritonclient.http}[protocol]
    url = {"grpc": server.grpc_url, "http": server.http_url}[protocol].split("//")[1]
    with module.InferenceServerClient(url) as client:
        result = client.infer(
            UNARY_MODEL,
            infer_inputs(
                module,
                text_input=[TEXTS[1]],
                sampling_param_max_tokens=[MAX_TOKENS],
                return_output_ids=[True],
                return_num_input_tokens=[True],
                return_num_output_tokens=[True],
                sampling_param_return_perf_metrics=[True],
                return_log_probs=[True],
                return_cumulative_logprob=[True],
            ),
        )
    expected = greedy[1]
    assert ids_of([result]) == list(expected.token_ids)
    assert result.as_numpy("finish_reason")[0].decode() == expected.finish_reason
    assert result.as_numpy("num_input_tokens")[0] == expected.usage.prompt_tokens
    assert result.as_numpy("num_output_tokens")[0] == len(expected.token_ids)
    names = ("arrival", "first_scheduled", "first_token", "last_token")
    times = [int(result.as_numpy(f"{name}_time_ns")[0]) for name in names]
    assert times == sorted(times)
    assert times[0] > 0
    logprobs = result.as_numpy("output_log_probs")
    assert len(logprobs) == len(expected.token_ids)
    assert (logprobs <= 0).all()
    assert result.as_numpy("cumulative_logprob")[0] == pytest.approx(logprobs.sum(), rel=1e-5)


def test_http_generate_and_server_sent_events(
    server: TritonServer, greedy_texts: list[str]
) -> None:
    body = {"text_input": TEXTS[3], "max_tokens": MAX_TOKENS}
    whole = json.loads(post(server, f"/v2/models/{UNARY_MODEL}/generate", body))
    assert whole["text_output"] == greedy_texts[3]

    streamed = post(
        server, f"/v2/models/{STREAMING_MODEL}/generate_stream", {**body, "stream": True}
    )
    lines = [line for line in streamed.decode().splitlines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(event["text_output"] for event in events) == greedy_texts[3]
    assert [event.get("finish_reason") for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["finish_reason"] in ("stop", "length")
    assert len(events) > 1

    # Without "stream" the decoupled model answers once.
    once = post(server, f"/v2/models/{STREAMING_MODEL}/generate_stream", body).decode()
    [event] = [line for line in once.splitlines() if line]
    assert json.loads(event.removeprefix("data: "))["text_output"] == greedy_texts[3]


def test_token_ids_and_parameters_instead_of_inputs(
    server: TritonServer, greedy_texts: list[str], tokenizer: Any
) -> None:
    ids = list(tokenizer.encode(TEXTS[1]))
    body = {"input_ids": ids, "parameters": {"max_tokens": MAX_TOKENS, "temperature": 0}}
    answer = json.loads(post(server, f"/v2/models/{UNARY_MODEL}/generate", body))
    assert answer["text_output"] == greedy_texts[1]

    body = {"text_input": TEXTS[1], "max_tokens": MAX_TOKENS, "exclude_input_in_output": False}
    answer = json.loads(post(server, f"/v2/models/{UNARY_MODEL}/generate", body))
    assert answer["text_output"] == TEXTS[1] + greedy_texts[1]


REFUSED = {
    "no_prompt": ({}, "prompt: expected exactly one of text_input .* got none of them"),
    "two_prompts": ({"text_input": "a", "input_ids": [1]}, "got text_input and input_ids"),
    "empty": ({"text_input": ""}, "text_input: expected at least one character"),
    "too_long": (
        {"input_ids": [9] * 1024},
        "prompt: 1024 tokens, longer than the limit: max_seq_len 1024 leaves at most 1023",
    ),
    "too_many": ({"text_input": "a", "max_tokens": 5000}, "max_tokens: 5000 after a prompt of 1"),
    "outside": ({"input_ids": [5, 2048]}, "prompt: token id 2048 at index 1 is outside the voc"),
    "negative": ({"input_ids": [-1]}, "prompt: token id -1 at index 0 is outside"),
    "overflow": ({"text_input": "a", "max_tokens": 3_000_000_000}, "max_tokens: expected an int"),
    "zero": ({"text_input": "a", "max_tokens": 0}, "max_tokens: expected an integer at least 1"),
    "cold": ({"text_input": "a", "temperature": -1.0}, "temperature: expected 0 .greedy. or"),
    "top_p": ({"text_input": "a", "top_p": 1.5}, "top_p: expected a number above 0 and at most 1"),
    "top_k": ({"text_input": "a", "top_k": -2}, "top_k: expected an integer at least 1, got -2"),
    "typo": ({"text_input": "a", "tempratur": 1}, "tempratur: no such .* Did you mean temperature"),
    "beams": ({"text_input": "a", "beam_width": 4}, "beam_width: this engine does not support it"),
    "penalty": ({"text_input": "a", "presence_penalty": 0.5}, "presence_penalty: this engine does"),
    "disagree": ({"text_input": "a", "max_tokens": 3, "sampling_param_max_tokens": 4}, "disagree"),
    "tools": ({"text_input": "a", "tools": "[]"}, "tools: belongs to a chat, and there are no me"),
    "json": ({"messages": "[{"}, "messages: expected a JSON list"),
    "effort": (
        {"messages": '[{"role":"user","content":"hi"}]', "reasoning_effort": "huge"},
        "reasoning_effort: expected one of low, medium, high, xhigh, max, got 'huge'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_bad_requests_are_refused_and_say_why(server: TritonServer, name: str, verb: str) -> None:
    body, message = REFUSED[name]
    model = UNARY_MODEL if verb == "generate" else STREAMING_MODEL
    status, text = refusal(server, f"/v2/models/{model}/{verb}", body)
    assert status == 400
    assert re.search(message, text)


def test_the_twin_refuses_to_stream(server: TritonServer) -> None:
    body = {"text_input": "a", "stream": True}
    status, text = refusal(server, f"/v2/models/{UNARY_MODEL}/generate", body)
    assert status == 400
    assert "model beam_sync answers once. Send streaming requests to model beam" in text


def test_administration_is_closed_to_strangers(server: TritonServer) -> None:
    for path in (
        f"/v2/repository/models/{STREAMING_MODEL}/unload",
        "/v2/systemsharedmemory/region/x/register",
        "/v2/logging",
    ):
        status, text = refusal(server, path, {"key": "x", "offset": 0, "byte_size": 1})
        assert (status, "restricted" in text) == (403, True), path
    address = server.grpc_url.removeprefix("grpc://")
    with tritonclient.grpc.InferenceServerClient(address) as client:
        with pytest.raises(tritonclient.grpc.InferenceServerException, match="restricted"):
            client.unload_model(STREAMING_MODEL)
        assert client.is_model_ready(STREAMING_MODEL)


def test_the_server_describes_the_tables_tensors(server: TritonServer) -> None:
    address = server.grpc_url.removeprefix("grpc://")
    with tritonclient.grpc.InferenceServerClient(address) as client:
        for model in (STREAMING_MODEL, UNARY_MODEL):
            metadata = client.get_model_metadata(model, as_json=True)
            for told, specs in ((metadata["inputs"], INPUTS), (metadata["outputs"], OUTPUTS)):
                expected = {
                    (
                        spec.name,
                        "BYTES" if spec.dtype == "STRING" else spec.dtype,
                        "-1" if spec.is_list else "1",
                    )
                    for spec in specs
                }
                assert {(one["name"], one["datatype"], *one["shape"]) for one in told} == expected
