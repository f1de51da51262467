"""From names to a ready engine: what most users need, in one call.

Knows: how the rooms below fit together. Does not know: commands, files of its own.
"""

from __future__ import annotations

from entmtp.engine.engine import Engine
from entmtp.heads import default_tree, load_heads, locate_heads
from entmtp.scheduler import StaticPolicy
from entmtp.target.load import load_target
from entmtp.trees import Tree, tree_by_name


def load(
    model: str,
    heads: str | None = None,
    tree: str | Tree | None = None,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    runtime: str = "auto",
    max_batch_size: int = 8,
) -> Engine:
    """An engine for a model, with or without draft heads.

    Args:
        model: `smollm2-135m`, a checkpoint folder, a `.gguf` file, or a hub id.
        heads: `medusa` or `hydra` (shipped, for the embedded model), or a folder or file of heads,
            published ones included.
            Without heads the engine decodes plainly.
        tree: a name, a file or a `Tree`; the heads' own tree of 16 nodes where it is left out.
        dtype: `float32` and `int8` (openvino, compiled; it rounds the weights), in which
            speculative output equals plain output to the token; `bfloat16`, `float16`; or `auto`:
            int8 on those, else bfloat16.
        runtime: `eager` (PyTorch), `compiled`, `openvino`, `graphs` (CUDA), or `auto`: the fastest
            that is ready.

    Raises:
        EntmtpError: something does not exist or does not fit; the message says what to do.
    """
    target = load_target(model, dtype, device, runtime=runtime)
    if heads is None:
        return Engine(target, max_batch_size=max_batch_size)
    loaded = load_heads(heads, target)
    if tree is None:
        tree = default_tree(locate_heads(heads))
    policy = StaticPolicy(tree_by_name(tree) if isinstance(tree, str) else tree)
    return Engine(target, loaded, policy, max_batch_size=max_batch_size)
