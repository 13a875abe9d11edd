"""The executor against a scripted session: every request gets its own tokens and one end."""

import random
import threading
import time

import pytest
from runtime_case import EOS, Case, Collected, expected_tokens

from beam_trt.errors import RequestError, ServerError
from beam_trt.runtime.request import Request, RequestOutput, SamplingParams


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = random.Random(f"{seed} {length}")
    return tuple(generator.randrange(2, 97) for _ in range(length))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17, 100])
def test_tokens_are_the_models(length: int) -> None:
    case = Case.build()
    sink = case.submit("a", prompt_of(length), max_tokens=40, ignore_eos=True)
    case.run()
    assert sink.token_ids == expected_tokens(prompt_of(length), 40, ignore_eos=True)
    assert sink.last.finish_reason == "length"
    assert sink.last.usage.prompt_tokens == length
    assert sink.last.usage.generated_tokens == 40
    assert case.executor.kv_cache.full.pool.num_used == 0
    assert case.executor.kv_cache.sliding.pool.num_used == 0


def test_requests_join_a_running_batch() -> None:
    case = Case.build()
    first = case.submit("first", prompt_of(5), max_tokens=30, ignore_eos=True)
    for _ in range(10):
        case.step()
    assert first.token_ids
    second = case.submit("second", prompt_of(40), max_tokens=5, ignore_eos=True)
    while not second.is_ended:
        case.step()
    assert not first.is_ended
    case.run()
    assert first.token_ids == expected_tokens(prompt_of(5), 30, ignore_eos=True)
    assert second.token_ids == expected_tokens(prompt_of(40), 5, ignore_eos=True)
    mixed = [n for n in case.session.tokens_of_steps if n > 1]
    assert mixed[1:], "the second context was not chunked beside generation"


@pytest.mark.parametrize("budget", [4, 5, 8, 13, 64, 256])
def test_chunk_size_changes_nothing_but_the_number_of_steps(budget: int) -> None:
    case = Case.build(max_num_tokens=budget, num_full_blocks=200)
    prompts = {f"r{n}": prompt_of(3 * n + 1, seed=n) for n in range(12)}
    for name, prompt in prompts.items():
        case.submit(name, prompt, max_tokens=10)
    case.run()
    for name, prompt in prompts.items():
        assert case.sinks[name].token_ids == expected_tokens(prompt, 10), name
    assert max(case.session.tokens_of_steps) <= budget


def test_eos_and_stop_tokens_end_a_request_and_are_delivered() -> None:
    prompt = prompt_of(3)
    long = expected_tokens(prompt, 200, ignore_eos=True)
    stop = long[4]
    case = Case.build()
    stopped = case.submit("stop", prompt, max_tokens=200, stop_token_ids=(stop,))
    free = case.submit("free", prompt, max_tokens=200, ignore_eos=True)
    eos = case.submit("eos", prompt, max_tokens=200)
    case.run()
    assert stopped.token_ids == long[: long.index(stop) + 1]
    assert (stopped.last.finish_reason, stopped.last.stop_token_id) == ("stop", stop)
    assert free.token_ids == long
    assert EOS in long
    assert eos.token_ids == long[: long.index(EOS) + 1]
    assert (eos.last.finish_reason, eos.last.stop_token_id) == ("stop", EOS)


def test_stop_tokens_are_banned_until_min_tokens() -> None:
    case = Case.build()
    case.submit("a", prompt_of(3), max_tokens=4, min_tokens=2, stop_token_ids=(90, 91, 90))
    case.run()
    banned = [rows[0].banned for rows in case.session.rows_of_steps]
    assert banned[:3] == [(90, 91, EOS), (90, 91, EOS), ()]


def test_cancel_frees_everything_within_a_step() -> None:
    for at in range(14):
        case = Case.build()
        sink = case.submit("a", prompt_of(40), max_tokens=8, ignore_eos=True)
        for _ in range(at):
            case.step()
        case.executor.cancel("a")
        case.step()
        assert sink.is_ended, at
        assert case.executor.num_open == 0
        assert case.executor.kv_cache.full.pool.num_used == 0
        assert case.executor.kv_cache.sliding.pool.num_used == 0
        assert case.executor.scheduler.num_running == 0
        if sink.last.finish_reason == "cancelled":
            assert sink.token_ids == expected_tokens(prompt_of(40), 8, True)[: len(sink.token_ids)]


def test_cancelling_a_waiting_or_unknown_request() -> None:
    case = Case.build(max_batch_size=1)
    case.submit("a", prompt_of(4), max_tokens=5)
    case.step()
    waiting = case.submit("b", prompt_of(4), max_tokens=5)
    case.executor.cancel("nobody")
    case.executor.cancel("b")
    case.executor.cancel("b")
    case.step()
    assert waiting.last.finish_reason == "cancelled"
    assert waiting.last.timings.first_scheduled is None
    case.run()


def test_a_sink_that_raises_is_cancelled_and_the_others_go_on() -> None:
    case = Case.build()

    def broken(output: RequestOutput) -> None:
        raise ValueError("sink")

    case.executor.submit(Request("bad", prompt_of(3), SamplingParams(max_tokens=50)), broken)
    good = case.submit("good", prompt_of(9), max_tokens=5, ignore_eos=True)
    case.run()
    assert good.token_ids == expected_tokens(prompt_of(9), 5, ignore_eos=True)
    assert case.executor.kv_cache.full.pool.num_used == 0
    assert case.executor.stats().total_cancelled == 1


def test_a_session_failure_answers_every_request() -> None:
    case = Case.build(max_batch_size=2)
    case.session.fail_at = 3
    sinks = [case.submit(f"r{n}", prompt_of(5), max_tokens=9, ignore_eos=True) for n in range(5)]
    for _ in range(3):
        case.executor.step()
    assert [sink.last.finish_reason for sink in sinks] == ["error"] * 5
    assert "scripted failure" in str(sinks[0].last.error)
    assert len(sinks[0].token_ids) == 2
    with pytest.raises(ServerError, match="scripted failure"):
        case.submit("late", prompt_of(2), max_tokens=2)
    assert case.executor.stats().total_failed == 5


def test_not_finite_logits_end_their_request_alone() -> None:
    case = Case.build()
    scripted = case.session.next_token
    case.session.next_token = lambda known, size: None if known[0] == 50 else scripted(known, size)
    bad = case.submit("bad", (50, 3), max_tokens=4)
    good = case.submit("good", (51, 3), max_tokens=4)
    case.run()
    assert bad.last.finish_reason == "error"
    assert "not finite" in str(bad.last.error)
    assert good.token_ids == expected_tokens((51, 3), 4)


def test_refusals_say_what_to_do() -> None:
    case = Case.build(max_seq_len=64, num_full_blocks=6, max_queued_requests=0, max_batch_size=2)
    with pytest.raises(RequestError, match="prompt: it has no tokens"):
        case.submit("a", ())
    with pytest.raises(RequestError, match=r"token id 97 at index 1 .* expected 0\.\.96"):
        case.submit("a", (3, 97))
    with pytest.raises(RequestError, match="prompt: 64 tokens, longer than the limit: max_seq_len"):
        case.submit("a", prompt_of(64))
    with pytest.raises(RequestError, match=r"limit max_seq_len 64\. Ask for at most 4 tokens"):
        case.submit("a", prompt_of(60), max_tokens=5)
    with pytest.raises(RequestError, match="need 49 tokens of KV cache, which holds 48"):
        case.submit("a", prompt_of(40), max_tokens=10)
    case.submit("a", prompt_of(40), max_tokens=9)
    with pytest.raises(RequestError, match="'a': a request with that id is still open"):
        case.submit("a", prompt_of(3), max_tokens=3)
    case.submit("b", prompt_of(3), max_tokens=3)
    with pytest.raises(RequestError, match="the queue is full, 2 requests are open"):
        case.submit("c", prompt_of(3), max_tokens=3)
    case.run()
    assert case.sinks["a"].token_ids == expected_tokens(prompt_of(40), 9)


def test_unseeded_requests_record_the_seed_they_drew() -> None:
    case = Case.build()
    one = case.submit("a", prompt_of(3), max_tokens=3, temperature=1.0)
    two = case.submit("b", prompt_of(3), max_tokens=3, temperature=1.0)
    fixed = case.submit("c", prompt_of(3), max_tokens=3, temperature=1.0, seed=7)
    greedy = case.submit("d", prompt_of(3), max_tokens=3)
    case.run()
    seeds = [row.seed for row in case.session.rows_of_steps[0]]
    assert seeds[:3] == [one.last.seed, two.last.seed, fixed.last.seed]
    assert one.last.seed != two.last.seed
    assert fixed.last.seed == 7
    assert greedy.last.seed is None


def test_logprobs_come_with_their_tokens() -> None:
    case = Case.build()
    sink = case.submit("a", prompt_of(3), max_tokens=3, ignore_eos=True, logprobs=True)
    plain = case.submit("b", prompt_of(3), max_tokens=3, ignore_eos=True)
    case.run()
    assert sink.logprobs == [-0.5] * 3
    assert plain.last.logprobs is None


def test_timings_are_in_order() -> None:
    case = Case.build()
    sink = case.submit("a", prompt_of(40), max_tokens=3, ignore_eos=True)
    case.run()
    timings = sink.last.timings
    assert timings.first_scheduled is not None
    assert timings.first_token is not None
    assert timings.last_token is not None
    assert timings.arrival <= timings.first_scheduled < timings.first_token < timings.last_token
    assert sink.outputs[0].timings.first_token == timings.first_token


def test_the_loop_serves_many_threads_and_closes() -> None:
    case = Case.build(num_full_blocks=200, num_sliding_blocks=100)
    case.executor.start()
    ended = threading.Semaphore(0)
    results: dict[str, Collected] = {}

    def client(number: int) -> None:
        for turn in range(5):
            sink = Collected()

            def deliver(output: RequestOutput, sink: Collected = sink) -> None:
                sink(output)
                if output.is_last:
                    ended.release()

            name = f"{number}-{turn}"
            results[name] = sink
            request = Request(name, prompt_of(number * 5 + turn + 1), SamplingParams(max_tokens=6))
            case.executor.submit(request, deliver)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(40):
        assert ended.acquire(timeout=60)
    for name, sink in results.items():
        number, turn = map(int, name.split("-"))
        assert sink.token_ids == expected_tokens(prompt_of(number * 5 + turn + 1), 6)
    assert case.executor.health().healthy
    case.executor.check_integrity()
    case.executor.close()
    assert case.session.num_closed == 1
    assert not case.executor.health().healthy


def test_close_cancels_what_is_open() -> None:
    case = Case.build()
    sink = case.submit("a", prompt_of(4), max_tokens=200, ignore_eos=True)
    waiting = case.submit("b", prompt_of(4), max_tokens=200, ignore_eos=True)
    case.step()
    case.executor.close()
    assert sink.last.finish_reason == waiting.last.finish_reason == "cancelled"
    with pytest.raises(ServerError, match="closed"):
        case.submit("c", prompt_of(4), max_tokens=2)


def test_an_idle_loop_notices_that_the_session_died() -> None:
    case = Case.build()
    case.executor.start()
    assert case.executor.health().healthy
    case.session.failure = ServerError("rank 2 is gone.")
    deadline = time.monotonic() + 60
    while (health := case.executor.health()).healthy and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "rank 2 is gone" in str(health.reason)
    case.executor.close()


def test_stats_add_up() -> None:
    case = Case.build(max_batch_size=2)
    for n in range(3):
        case.submit(f"r{n}", prompt_of(10, seed=n), max_tokens=4, ignore_eos=True)
    assert case.executor.stats().num_waiting == 3
    case.step()
    stats = case.executor.stats()
    assert (stats.num_running, stats.num_waiting) == (2, 1)
    assert stats.num_tokens == stats.num_context_tokens == 16
    assert stats.full_blocks_used + stats.full_blocks_free == 40
    assert stats.full_blocks_used == 3
    case.run()
    stats = case.executor.stats()
    assert stats.total_finished == 3
    assert stats.total_prompt_tokens == 30
    assert stats.total_generated_tokens == 12
    assert stats.iteration == case.session.num_steps
    assert stats.to_dict()["step_us"] == stats.step_us


def test_a_step_listener_that_raises_leaves_no_request_open() -> None:
    case = Case.build()
    calls: list[int] = []

    def broken() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("listener")

    case.executor.on_step_end = broken
    ended = threading.Event()
    outputs: list[RequestOutput] = []

    def sink(output: RequestOutput) -> None:
        outputs.append(output)
        if output.is_last:
            ended.set()

    case.executor.start()
    case.executor.submit(Request("a", prompt_of(3), SamplingParams(max_tokens=50)), sink)
    assert ended.wait(60)
    assert "listener" in str(outputs[-1].error)
    assert not case.executor.health().healthy
    case.executor.close()
