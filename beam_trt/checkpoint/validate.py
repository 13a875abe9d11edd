"""Compare what a checkpoint holds with what a Beam checkpoint must hold. Headers only."""

from beam_trt.checkpoint import names
from beam_trt.checkpoint.header import TensorInfo
from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.checkpoint.names import ExpectedTensor, checkpoint_tensors
from beam_trt.errors import CheckpointError

_SHOWN = 3


def validate(index: CheckpointIndex) -> None:
    """Raise CheckpointError unless every expected tensor is there with its shape and dtype, and
    nothing else is. Packed 3-D experts count as the per-expert tensors they hold."""
    expected: dict[str, ExpectedTensor] = {}
    missing: list[str] = []
    for tensor in checkpoint_tensors(index.config, index.quant):
        expected[tensor.name] = tensor
        if index.find(tensor.name) is None:
            missing.append(tensor.name)
        if len(missing) > _SHOWN:
            # Soon enough for a config.json that asks for a billion experts.
            break
    if missing:
        raise CheckpointError(
            f"{index.folder}: missing {_listed(missing)}. The checkpoint is incomplete: fetch it "
            "again, or check that config.json belongs to it."
        )
    packed = {tensor.name: tensor for tensor in _present_packed(index)}
    extra = [name for name in index.tensors if name not in expected and name not in packed]
    if extra:
        raise CheckpointError(
            f"{index.folder}: found {_listed(extra)}, no part of the Beam model that config.json "
            f"describes ({index.config.num_hidden_layers} layers, {index.config.num_experts} "
            "experts). Check that config.json belongs to these weights."
        )
    for tensor in packed.values():
        _check(index, tensor, index.tensors[tensor.name])
        prefix = tensor.name.removesuffix("gate_up_proj").removesuffix("down_proj")
        alone = [name for name in index.tensors if name.startswith(prefix) and name in expected]
        if alone:
            raise CheckpointError(
                f"{index.folder}: {_listed(alone)} stored twice: alone and in the packed "
                f"{tensor.name}. Remove one of the two forms."
            )
    for name, tensor in expected.items():
        _check(index, tensor, index.require(name))


def _present_packed(index: CheckpointIndex) -> list[ExpectedTensor]:
    config, dtypes = index.config, names.PLAIN_DTYPES
    experts, hidden, inner = config.num_experts, config.hidden_size, config.moe_intermediate_size
    tensors = []
    for layer_idx in range(config.num_hidden_layers):
        if config.is_moe(layer_idx) and not index.precision.is_quantized:
            gate_up = (experts, 2 * inner, hidden)
            tensors.append(ExpectedTensor(names.packed_gate_up(layer_idx), dtypes, gate_up))
            down = (experts, hidden, inner)
            tensors.append(ExpectedTensor(names.packed_down(layer_idx), dtypes, down))
    return [tensor for tensor in tensors if tensor.name in index.tensors]


def _check(index: CheckpointIndex, expected: ExpectedTensor, found: TensorInfo) -> None:
    where = f"{index.folder}: {expected.name} in {found.file.name}"
    if found.shape != expected.shape:
        raise CheckpointError(
            f"{where}: expected shape {list(expected.shape)}, found {list(found.shape)}. Check "
            "that config.json belongs to these weights."
        )
    if found.dtype in expected.dtypes:
        return
    wanted = " or ".join(expected.dtypes)
    if ".mlp.gate." in expected.name:
        raise CheckpointError(
            f"{where}: expected the router in {wanted}, found {found.dtype}: a rounded router "
            "picks other experts than the trained one. Take it from the original checkpoint."
        )
    raise CheckpointError(
        f"{where}: expected dtype {wanted}, found {found.dtype}. Convert it, or fetch the "
        "original checkpoint."
    )


def _listed(found: list[str]) -> str:
    shown = ", ".join(found[:_SHOWN])
    kind = "tensor" if len(found) == 1 else "tensors"
    return f"{kind} {shown}{' and more' if len(found) > _SHOWN else ''}"
