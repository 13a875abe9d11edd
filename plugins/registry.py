"""The `beam_trt` op namespace: how an op is declared with its CPU and fake implementations."""

from collections.abc import Callable
from typing import Any

import torch

_LIBRARY = torch.library.Library("beam_trt", "DEF")


def define(schema: str, cpu: Callable[..., Any], fake: Callable[..., Any]) -> str:
    """Declare `beam_trt::<schema>` and return its name.

    Registered through `Library` and not `custom_op`: the latter adds about 10 us of Python to each
    call, as much as a small op itself takes. `fake` sees meta tensors and only makes shapes.
    """
    name = schema.split("(", 1)[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, cpu, "CPU")
    torch.library.register_fake(f"beam_trt::{name}", fake, lib=_LIBRARY)
    return name


def kept(owner: torch.Tensor, key: str, build: Callable[[], torch.Tensor]) -> torch.Tensor:
    """`build()` computed once for `owner`, a constant weight, and kept as long as it lives.

    CPU kernels read weights as fp32, transposed; this is where that copy lives. It is not renewed
    when `owner` changes in place: engine weights never do.
    """
    found = getattr(owner, key, None)
    if found is None:
        found = build()
        setattr(owner, key, found)
    assert isinstance(found, torch.Tensor)
    return found
