"""The table of inputs, what is read from them, and that clients write what the model reads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_trt.errors import RequestError
from beam_trt.runtime.request import MAX_SEED, SamplingParams, Timings, Usage
from beam_trt.serving.answer import Ending, GenerateRequest, Piece
from beam_trt.serving.chat import ChatRequest
from beam_trt.triton.inputs import generate_to_inputs, read_inputs
from beam_trt.triton.outputs import piece_from_values, piece_to_values
from beam_trt.triton.tensors import INPUTS, OUTPUTS

USER = {"role": "user", "content": "Grüße"}


def test_names_are_unique() -> None:
    for specs in (INPUTS, OUTPUTS):
        names = [spec.name for spec in specs]
        assert len(names) == len(set(names))
    known = {spec.means for spec in INPUTS}
    assert {spec.asked_by for spec in OUTPUTS} - {None} <= known


samplings = st.builds(
    SamplingParams,
    max_tokens=st.integers(5, 2**31 - 1),
    # What FP32 carries: its shortest decimal comes back as the number that was written.
    temperature=st.sampled_from([0.0, 0.1, 0.7, 1.0, 1.3]),
    top_k=st.one_of(st.none(), st.integers(1, 1000)),
    top_p=st.sampled_from([0.1, 0.95, 1.0]),
    seed=st.one_of(st.none(), st.integers(0, MAX_SEED)),
    stop_token_ids=st.lists(st.integers(0, 99), max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 5),
    logprobs=st.booleans(),
)
prompts = st.one_of(
    st.builds(lambda text: {"text": text}, st.text(min_size=1)),
    st.builds(lambda ids: {"input_ids": tuple(ids)}, st.lists(st.integers(0, 99), min_size=1)),
    st.just({"chat": ChatRequest((USER,))}),
    st.just({"chat": ChatRequest((USER,), ({"name": "f"},), "max", {"preserve_thinking": True})}),
)


@settings(deadline=None)
@given(prompts, samplings, st.lists(st.text(min_size=1), max_size=2).map(tuple), st.booleans())
def test_the_model_reads_what_a_client_writes(
    prompt: dict[str, object],
    sampling: SamplingParams,
    stops: tuple[str, ...],
    streaming: bool,
) -> None:
    request = GenerateRequest(**prompt, sampling=sampling, stop_strings=stops)  # type: ignore[arg-type]
    sent = generate_to_inputs(request, streaming)
    read = read_inputs(sent, {}, can_stream=True)
    assert read.generate == request
    assert read.streaming is streaming
    assert read.exclude_input


def test_defaults() -> None:
    read = read_inputs({"text_input": [b"hi"]}, {}, can_stream=True)
    assert read.generate == GenerateRequest(text="hi", fit_max_tokens=True)
    assert not read.streaming
    assert read.asked == {"return_finish_reason"}


def test_old_and_new_names_mean_the_same() -> None:
    old = {"max_tokens": [7], "stop_words": [b"a", b"b"], "seed": [3], "top_k": [0]}
    new = {
        "sampling_param_max_tokens": [7],
        "sampling_param_stop": [b"a", b"b"],
        "sampling_param_seed": [3],
    }
    text = {"text_input": [b"hi"]}
    assert read_inputs(text | old, {}, True) == read_inputs(text | new, {}, True)
    assert read_inputs(text | old | new, {}, True) == read_inputs(text | new, {}, True)


def test_end_id_replaces_the_models_own() -> None:
    read = read_inputs({"text_input": [b"hi"], "end_id": [4], "pad_id": [0]}, {}, True)
    assert read.generate.sampling.stop_token_ids == (4,)
    assert read.generate.sampling.ignore_eos
    read = read_inputs({"text_input": [b"hi"], "end_id": [-1]}, {}, True)
    assert not read.generate.sampling.ignore_eos


def test_protocol_parameters_are_no_inputs() -> None:
    parameters = {"priority": 3, "timeout": 0, "triton_enable_empty_final_response": True}
    read = read_inputs({"text_input": [b"hi"]}, {**parameters, "max_tokens": 9}, True)
    assert read.generate.sampling.max_tokens == 9


@pytest.mark.parametrize("spec", [s for s in INPUTS if s.neutral is not None], ids=lambda s: s.name)
def test_what_is_not_supported_is_refused_unless_neutral(spec: object) -> None:
    assert hasattr(spec, "neutral")
    text = {"text_input": [b"hi"]}
    for value in spec.neutral:  # type: ignore[attr-defined]
        read_inputs({**text, spec.name: [value]}, {}, True)  # type: ignore[attr-defined]
    other = {"BOOL": True, "STRING": "x", "FP32": 0.5}.get(spec.dtype, 7)  # type: ignore[attr-defined]
    with pytest.raises(RequestError, match="this engine does not support it"):
        read_inputs({**text, spec.name: [other]}, {}, True)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("inputs", "parameters", "message"),
    [
        ({"text_input": [b"\xff"]}, {}, r"text_input: expected UTF-8 text"),
        ({"text_input": [b"a", b"b"]}, {}, r"text_input: expected one value, got 2"),
        ({"text_input": [b"a"], "top_p": ["x"]}, {}, r"top_p: expected FP32, got 'x'"),
        ({"text_input": [b"a"]}, {"max_tokens": "many"}, r"max_tokens: expected INT32, got 'many'"),
        ({"text_input": [b"a"]}, {"max_tokens": True}, r"max_tokens: expected INT32, got True"),
        ({"text_input": [b"a"]}, {"sed": 1}, r"sed: no such .* Did you mean seed\?"),
        ({"messages": [b'{"role": "user"}']}, {}, r"messages: expected a JSON list, got dict"),
        ({"messages": [b"[" * 100_000]}, {}, r"messages: expected a JSON list"),
        ({"input_ids": [], "max_tokens": [1]}, {}, ""),
    ],
)
def test_what_cannot_be_read(
    inputs: dict[str, list[object]], parameters: dict[str, object], message: str
) -> None:
    if not message:  # no ids are a prompt, whose emptiness the engine's limits refuse
        assert read_inputs(inputs, parameters, True).generate.input_ids == ()
        return
    with pytest.raises(RequestError, match=message):
        read_inputs(inputs, parameters, True)


def test_pieces_survive_the_outputs() -> None:
    ending = Ending(
        finish_reason="stop",
        stop_reason="END",
        tool_calls=({"type": "function", "function": {"name": "f", "arguments": {"é": [1]}}},),
        cumulative_logprob=-1.5,
        usage=Usage(3, 4, 1),
        timings=Timings(1, 2, None, 4),
    )
    everything = frozenset(spec.asked_by for spec in OUTPUTS if spec.asked_by)
    for piece in (
        Piece(text="é", reasoning="r", content="c", token_ids=(1, 2), logprobs=(-0.5, -1.0)),
        Piece(text="", token_ids=(3,), logprobs=(-0.25,), ending=ending),
    ):
        values = piece_to_values(piece, is_chat=True, asked=everything)
        assert list(values) == [spec.name for spec in OUTPUTS if spec.name in values]
        assert piece_from_values(values) == piece
    values = piece_to_values(piece, is_chat=False, asked=frozenset(), echo="hi")
    assert values == {"text_output": ["hi"]}


def test_numbers_arrive_as_the_client_wrote_them() -> None:
    from beam_trt.triton.backend import _to_list

    assert _to_list(np.array([0.7, 1e-5, 3.0], dtype=np.float32)) == [0.7, 1e-5, 3.0]
    assert _to_list(np.array([[b"a"]], dtype=object)) == [b"a"]
