"""What a request can ask for, through our own clients on the real server: seeds, stop strings,
chats, cancellation, and the command line."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from triton_serving import MAX_TOKENS, TEXTS

from beam_trt.client.connect import Client, connect
from beam_trt.client.grpc import AsyncGrpcClient
from beam_trt.errors import RequestError
from beam_trt.runtime.host_client import EngineClient
from beam_trt.runtime.local import GenerationResult
from beam_trt.runtime.request import SamplingParams
from beam_trt.serving.answer import Answer, GenerateRequest
from beam_trt.serving.chat import ChatRequest
from beam_trt.serving.local import LocalEngine
from beam_trt.serving.text import Tokenizer
from beam_trt.triton.server import TritonServer

SAMPLED = SamplingParams(max_tokens=12, temperature=0.7, top_k=50, top_p=0.95, seed=2**63 + 5)
LONG = GenerateRequest(text="a b c", sampling=SamplingParams(max_tokens=900, ignore_eos=True))


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, server: TritonServer) -> Iterator[Client]:
    url = server.grpc_url if request.param == "grpc" else server.http_url
    with connect(url, idle_timeout_s=120) as opened:
        assert opened.is_ready()
        yield opened


@pytest.fixture(scope="session")
def local(build_dir: Path) -> Iterator[LocalEngine]:
    with LocalEngine(build_dir / "engine") as opened:
        yield opened


def greedy_request(text: str) -> GenerateRequest:
    return GenerateRequest(text=text, sampling=SamplingParams(max_tokens=MAX_TOKENS))


def test_streamed_and_whole_answers_are_one(
    client: Client, greedy: list[GenerationResult], greedy_texts: list[str]
) -> None:
    request = greedy_request(TEXTS[2])
    pieces = list(client.stream(request))
    streamed, whole = Answer.join(pieces), client.generate(request)
    assert streamed.text == whole.text == greedy_texts[2]
    assert streamed.token_ids == whole.token_ids == greedy[2].token_ids
    assert streamed.ending is not None
    assert whole.ending is not None
    assert streamed.ending.finish_reason == whole.ending.finish_reason == greedy[2].finish_reason
    assert streamed.ending.usage is not None
    assert streamed.ending.usage.prompt_tokens == greedy[2].usage.prompt_tokens
    assert len(pieces) > 1


def test_async_streams(server: TritonServer, greedy_texts: list[str]) -> None:
    async def run() -> list[Answer]:
        async with AsyncGrpcClient(server.grpc_url.removeprefix("grpc://")) as client:

            async def one(text: str) -> Answer:
                return Answer.join([piece async for piece in client.stream(greedy_request(text))])

            streamed = await asyncio.gather(*(one(text) for text in TEXTS[:4]))
            return [*streamed, await client.generate(greedy_request(TEXTS[4]))]

    assert [answer.text for answer in asyncio.run(run())] == greedy_texts[:5]


def test_a_seed_gives_the_local_engines_tokens(client: Client, local: LocalEngine) -> None:
    request = GenerateRequest(text=TEXTS[1], sampling=SAMPLED)
    expected = local.generate(request).token_ids
    assert client.generate(request).token_ids == expected
    assert Answer.join(client.stream(request)).token_ids == expected
    other = GenerateRequest(text=TEXTS[1], sampling=SamplingParams(max_tokens=12, temperature=0.7))
    drawn = {client.generate(other).token_ids for _ in range(3)}
    assert len(drawn) > 1, "without a seed every answer is another"


def test_a_stop_string_over_token_boundaries(client: Client, greedy_texts: list[str]) -> None:
    text = max(greedy_texts, key=len)
    middle = len(text) // 2
    stop = text[middle : middle + 5]
    request = GenerateRequest(
        text=TEXTS[greedy_texts.index(text)],
        sampling=SamplingParams(max_tokens=MAX_TOKENS),
        stop_strings=("never said", stop),
    )
    for answer in (client.generate(request), Answer.join(client.stream(request))):
        assert answer.text == text[: text.index(stop)]
        assert answer.ending is not None
        assert (answer.ending.finish_reason, answer.ending.stop_reason) == ("stop", stop)
        assert answer.ending.usage is not None
        assert answer.ending.usage.generated_tokens == len(answer.token_ids) < MAX_TOKENS


def test_a_chat_is_rendered_and_parsed_by_the_server(
    client: Client, local: LocalEngine, tokenizer: Tokenizer
) -> None:
    chat = ChatRequest(
        messages=({"role": "user", "content": "What is 2 + 2?"},),
        tools=({"type": "function", "function": {"name": "add", "parameters": {}}},),
        reasoning_effort="low",
    )
    request = GenerateRequest(chat=chat, sampling=SamplingParams(max_tokens=40))
    streamed, whole = Answer.join(client.stream(request)), client.generate(request)
    expected = local.generate(request)
    assert whole.token_ids == streamed.token_ids == expected.token_ids
    assert whole.text == streamed.text == expected.text
    prompt = tokenizer.hf.apply_chat_template(
        list(chat.messages),
        tools=list(chat.tools),
        reasoning_effort="low",
        tokenize=False,
        add_generation_prompt=True,
    )
    parsed = tokenizer.hf.parse_response(expected.text, prefix=prompt, tools=list(chat.tools))
    for answer in (streamed, whole):
        assert answer.reasoning == parsed.get("reasoning_content", "")
        assert answer.content == parsed.get("content", "")
        assert answer.ending is not None
        assert list(answer.ending.tool_calls) == parsed.get("tool_calls", [])
        assert answer.ending.usage is not None
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        assert answer.ending.usage.prompt_tokens == len(ids)


def test_a_long_prompt_without_max_tokens_gets_what_fits(client: Client) -> None:
    request = GenerateRequest(input_ids=tuple(range(300, 1000)) + (7,) * 318, fit_max_tokens=True)
    answer = client.generate(request)
    assert answer.ending is not None
    assert len(answer.token_ids) <= 6
    with pytest.raises(RequestError, match="prompt: 1024 tokens, longer than the limit"):
        client.generate(GenerateRequest(input_ids=(9,) * 1024, fit_max_tokens=True))


def wait_until_idle(engine: EngineClient) -> dict[str, Any]:
    """The engine's stats once nothing runs or waits; fails when that never happens."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        stats = engine.stats()
        if stats["num_running"] == stats["num_waiting"] == 0 and engine.ping()["idle"]:
            return stats
        time.sleep(0.05)
    raise AssertionError(f"never idle: {stats}")


def test_closing_a_stream_frees_the_request(client: Client, server: TritonServer) -> None:
    with EngineClient(server.engine_socket) as engine:
        before = wait_until_idle(engine)
        streams = [client.stream(LONG) for _ in range(3)]
        for stream in streams:
            assert next(stream).ending is None
        for stream in streams:
            stream.close()  # type: ignore[attr-defined]
        after = wait_until_idle(engine)
    assert after["total_cancelled"] - before["total_cancelled"] == 3
    # 3 * 900 tokens would have taken far longer: it really stopped.
    assert after["total_generated_tokens"] - before["total_generated_tokens"] < 3 * 500
    assert after["full_blocks_used"] == before["full_blocks_used"]
    assert after["sliding_blocks_used"] == before["sliding_blocks_used"]


def test_cancelling_a_task_frees_the_request(server: TritonServer) -> None:
    async def run() -> None:
        async with AsyncGrpcClient(server.grpc_url.removeprefix("grpc://")) as client:
            started = asyncio.Event()

            async def read() -> None:
                async for _ in client.stream(LONG):
                    started.set()

            task = asyncio.create_task(read())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with EngineClient(server.engine_socket) as engine:
        before = wait_until_idle(engine)
        asyncio.run(run())
        after = wait_until_idle(engine)
    assert after["total_cancelled"] - before["total_cancelled"] == 1


@pytest.mark.parametrize("way", ["grpc", "http", "engine"])
def test_generate_command(
    server: TritonServer, build_dir: Path, greedy: list[GenerationResult], way: str
) -> None:
    where = {
        "grpc": ["--url", server.grpc_url],
        "http": ["--url", server.http_url, "--no-stream"],
        "engine": ["--engine", str(build_dir)],
    }[way]
    beam_trt = Path(sys.executable).parent / "beam-trt"
    command = [str(beam_trt), "generate", TEXTS[1], "--raw", "--json"]
    done = subprocess.run(
        [*command, "--max-tokens", str(MAX_TOKENS), *where], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert set(answer) >= {
        *("text", "token_ids", "finish_reason", "reasoning", "tool_calls", "usage", "timings")
    }
    assert answer["token_ids"] == list(greedy[1].token_ids)
    assert answer["finish_reason"] == greedy[1].finish_reason
    assert answer["usage"]["prompt_tokens"] == greedy[1].usage.prompt_tokens
