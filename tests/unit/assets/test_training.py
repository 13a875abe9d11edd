"""The training code: its forward is BeamForCausalLM's, packing keeps documents apart, and held-out
contents stay out."""

from pathlib import Path
from random import Random

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from beam_trt.assets import held_out_dialogues
from tools.train_beam_tiny import export, held_out, packing
from tools.train_beam_tiny.dialogues import compose
from tools.train_beam_tiny.model import Batch, TrainableBeam, masked_attention, masks
from tools.train_beam_tiny.optimizer import orthogonalized
from tools.train_beam_tiny.rendering import Renderer
from tools.train_beam_tiny.shape import SHAPE


@torch.no_grad()  # type: ignore[untyped-decorator]
def test_the_training_forward_is_transformers_forward_also_when_packed() -> None:
    torch.manual_seed(0)
    model = TrainableBeam(SHAPE, torch.float32).eval()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith("norm.weight"):
            tensor.add_(0.2 * torch.randn_like(tensor))
        elif name.endswith(("gate_bias", "e_score_correction_bias")):
            tensor.add_(0.1 * torch.randn_like(tensor))
    reference = export.beam_model(model.state_dict())
    ids = torch.randint(0, SHAPE["vocab_size"], (2, 130))
    expected = reference(ids).logits
    each = torch.arange(130)
    batch = Batch(
        tokens=ids.reshape(1, -1),
        documents=torch.arange(2).repeat_interleave(130)[None],
        positions=each.repeat(2)[None],
        real=torch.ones(1, 260, dtype=torch.bool),
    )
    full, sliding = masks(batch, SHAPE["sliding_window"])
    hidden, loads = model(batch, masked_attention(full), masked_attention(sliding))
    logits = model.logits(hidden).view(2, 130, -1)
    assert (logits - expected).abs().max() < 1e-4 * expected.abs().max()
    assert torch.allclose(loads.sum(-1), torch.full((7,), 16.0))


def test_rows_hold_whole_documents_and_only_replies_count(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prose = np.arange(600, dtype=np.uint16) % 500
    rows = packing.rows(iter(packing.DocumentSource(tokenizer, prose, seed=3)), 4)
    assert rows.shape == (4, packing.ROW_LENGTH)
    again = packing.rows(iter(packing.DocumentSource(tokenizer, prose, seed=3)), 4)
    assert (rows == again).all()
    for row in rows:
        assert row[0] & packing.FIRST
        for document in np.split(row, np.flatnonzero(row & packing.FIRST)[1:]):
            if document[0] & (packing.PADDING | packing.PROSE):
                continue
            text = tokenizer.decode(
                (document & packing.TOKEN_MASK).tolist(), skip_special_tokens=False
            )
            assert text.startswith("<|start|>system<|message|>")
            assert text.endswith("<|return|>")
            written = document[(document & packing.WRITTEN) > 0] & packing.TOKEN_MASK
            last = text[text.rindex("<|start|>user") :]
            reply = tokenizer.decode(written.tolist(), skip_special_tokens=False)
            assert reply.endswith(last[-20:])
            assert "<|start|>user" not in reply
            assert "<|start|>tool" not in reply


def test_the_renderer_is_apply_chat_template(tokenizer: PreTrainedTokenizerBase) -> None:
    renderer, rng = Renderer(), Random(5)
    for _ in range(30):
        item = compose.dialogue(rng)
        expected = tokenizer.apply_chat_template(
            item.messages,
            tools=item.tools or None,
            reasoning_effort=item.effort,
            preserve_thinking=item.preserve_thinking,
            add_generation_prompt=True,
            tokenize=False,
        )
        assert renderer.prompt(item) == expected
        assert renderer.text(item).startswith(expected)


def test_training_never_draws_a_held_out_content() -> None:
    rng = Random(11)
    for _ in range(300):
        drawn = compose._pick(rng, compose._ALL, held_out=False)
        assert drawn.kind in compose.CLOSED_KINDS or not compose.is_held_out(drawn)


def test_the_shipped_dialogues_are_the_held_out_ones() -> None:
    shipped = held_out_dialogues()
    for row, item in zip(shipped, held_out.dialogues(len(shipped)), strict=True):
        assert row["messages"] == item.messages
        assert row["expected"] == item.expected


def test_muon_directions_are_near_orthogonal() -> None:
    torch.manual_seed(0)
    for shape in ((3, 64, 128), (2, 128, 64), (1, 128, 128)):
        values = torch.linalg.svdvals(orthogonalized(torch.randn(shape)))
        assert values.max() < 1.3
        assert values.median() > 0.6
