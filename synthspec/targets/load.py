"""From the spec's `target` to a model that can be asked."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from synthspec import spec
from synthspec.errors import UserError, first_line
from synthspec.files import canonical, is_folder
from synthspec.targets import smollm2
from synthspec.yamlfile import shown

# A weights file is known by so many samples of its bytes, evenly spaced.
SAMPLES, SAMPLE_BYTES = 512, 1 << 14

# Two targets that agree in these, and in the versions below, write the same answers.
IDENTITY = ("model", "revision", "weights_sha256", "tokenizer_sha256", "template_sha256", "dtype", "device")


def versions() -> list[str]:
    """The libraries whose arithmetic and grammars an answer depends on, with their versions."""
    return [f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "llguidance")]


@dataclass(frozen=True)
class Place:
    """Where a target's files are: a folder, or a hub id with its commit."""

    name: str
    path: str
    revision: str | None

    @property
    def commit(self) -> str | None:
        """The commit of a hub id."""
        return None if self.folder else self.revision

    @property
    def folder(self) -> Path | None:
        return Path(self.path) if Path(self.path).is_dir() else None


def find(target: spec.Target) -> Place:
    """Locate a target without loading it.

    Args:
    Raises:
        UserError: no such folder, or a hub id without a revision.
    """
    if target.model == "smollm2":
        return Place("SmolLM2-135M-Instruct", str(smollm2.folder()), smollm2.revision())
    folder = Path(target.model)
    if is_folder(folder):
        return Place(folder.name, str(folder.resolve()), target.revision)
    if target.model.startswith((".", "/")) or target.model.count("/") != 1:
        raise UserError(
            f"target.model: there is no folder {folder}; give an existing one, a hub id such as "
            "Qwen/Qwen3-8B, or smollm2"
        )
    if not target.revision:
        raise UserError(
            f"target.revision: the hub id {target.model} needs a commit; give the one that production serves"
        )
    return Place(target.model, target.model, target.revision)


def load_tokenizer(target: spec.Target) -> Any:
    """The target's tokenizer with its chat template; no weights are read.

    Raises:
        UserError: it cannot be found, or has no chat template.
    """
    from transformers import AutoTokenizer

    place = find(target)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place.path, revision=target.revision, trust_remote_code=False)
    except Exception as error:  # a damaged file fails in a hundred ways
        raise UserError(
            f"target.model: no tokenizer can be loaded from {place.path} ({first_line(error)}): give the "
            "folder or hub id of a model with a tokenizer.json, whose code is transformers' own"
        ) from None
    if not tokenizer.chat_template:
        raise UserError(
            f"target.model: the tokenizer of {place.name} has no chat template; use an instruct model"
        )
    return tokenizer


def tokenizer_named(model: str) -> Any:
    """The tokenizer of smollm2, of a folder, or of a hub id with its commit, `owner/name@commit`.

    Raises:
        UserError: as `load_tokenizer`.
    """
    with _told_as("--target"):
        return load_tokenizer(_target_named(model))


def place_named(model: str, option: str) -> Place:
    """Where the files of such a model are.

    Args:
        option: that it was given as, for messages.

    Raises:
        UserError: there is none.
    """
    with _told_as(option):
        return find(_target_named(model))


def _target_named(model: str) -> spec.Target:
    name, _, revision = model.partition("@")
    if not name or (name == "smollm2" and revision):
        raise UserError(
            f"target.model: {shown(model)} is no model; write smollm2, a folder, or owner/name@commit"
        )
    return spec.Target(model=name, revision=revision or None)


@contextmanager
def _told_as(option: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(re.sub(r"^target\.(model|revision)", option, str(error))) from None


def describe_target(target: spec.Target) -> dict[str, Any]:
    """What identifies a target and how big it is, without reading its weights.

    Returns:
        `model`, `revision`, `weights_sha256`, `tokenizer_sha256`, `template_sha256`, `dtype`, `device`,
        `parameters`, `bytes_needed`, `vocab_size`, `max_positions`, `layers`, `hidden_size`, and
        `embedding_scale`, what it multiplies its embeddings by.

    Raises:
        UserError: it cannot be found, or does not fit into memory.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    place = find(target)
    try:
        config = AutoConfig.from_pretrained(place.path, revision=target.revision, trust_remote_code=False)
        with torch.device("meta"):
            shapes = AutoModelForCausalLM.from_config(config)
        text = config.get_text_config()
        facts = {
            "vocab_size": text.vocab_size,
            "max_positions": text.max_position_embeddings,
            "layers": text.num_hidden_layers,
            "hidden_size": text.hidden_size,
            "embedding_scale": getattr(shapes.get_input_embeddings(), "scalar_embed_scale", 1.0),
        }
    except Exception as error:  # a config that makes no sense fails in a hundred ways
        raise UserError(
            f"target.model: {place.path} is no causal language model ({first_line(error)})"
        ) from None
    tokenizer = load_tokenizer(target)
    parameters = sum(parameter.numel() for parameter in shapes.parameters())
    dtype = choose_dtype(target)
    return {
        "model": place.name,
        "revision": place.revision,
        "weights_sha256": _weights_digest(place),
        "tokenizer_sha256": _digest(tokenizer.backend_tokenizer.to_str()),
        "template_sha256": _digest(tokenizer.chat_template),
        "dtype": str(dtype).removeprefix("torch."),
        "device": choose_device(target).type,
        "parameters": parameters,
        "bytes_needed": parameters * dtype.itemsize,
        **facts,
    }


def architectures(target: spec.Target) -> list[str]:
    """The names of its classes, as its config.json gives them."""
    from transformers import AutoConfig

    place = find(target)
    config = AutoConfig.from_pretrained(place.path, revision=target.revision, trust_remote_code=False)
    return list(config.architectures or [])


def choose_device(target: spec.Target) -> Any:
    """Where to compute.

    Raises:
        UserError: the spec names a device that torch does not have.
    """
    import torch

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if target.device != "auto":
        if not there[target.device]:
            raise UserError(
                f"target.device: {target.device} is not available to torch here: write auto, or install "
                "a build of torch that has it"
            )
        return torch.device(target.device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_dtype(target: spec.Target) -> Any:
    """The dtype to compute in: what the spec says, else bfloat16 where the processor multiplies in it."""
    import torch

    if target.dtype != "auto":
        return getattr(torch, target.dtype)
    if choose_device(target).type == "cuda":
        return torch.bfloat16
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else torch.float32


def check_memory(description: dict[str, Any], target: spec.Target) -> None:
    """Refuse a target whose weights do not fit.

    Raises:
        UserError: with both sizes.
    """
    import torch

    device = choose_device(target)
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        import psutil

        free = psutil.virtual_memory().available
    need = description["bytes_needed"]
    if need > 0.9 * free:
        raise UserError(
            f"target.model: {description['model']} needs {need / 1e9:.1f} GB in {description['dtype']}, "
            f"{free / 1e9:.1f} GB are free on {device}: take a smaller model, or serve it with SGLang on a "
            "larger machine and set worker.kind to sglang"
        )


class LoadedTarget:
    """A target, its tokenizer, and, once something asks for it, its weights."""

    def __init__(self, settings: spec.Target, worker: str) -> None:
        self.settings = settings
        self._worker = worker
        self.place = find(settings)
        self.description = describe_target(settings)
        self.tokenizer = load_tokenizer(settings)

    @cached_property
    def fingerprint(self) -> str:
        """Changes whenever the answers could: weights, tokenizer, template, dtype, or versions."""
        facts = {key: self.description[key] for key in IDENTITY}
        return hashlib.sha256(canonical([facts, versions(), self._worker]).encode()).hexdigest()[:16]

    @cached_property
    def stop_ids(self) -> list[int]:
        """The tokens that end an answer: the tokenizer's end token and what the model's own settings add."""
        ends = getattr(self.model.model.generation_config, "eos_token_id", None)
        more = [ends] if isinstance(ends, int) else list(ends or [])
        return sorted({self.tokenizer.eos_token_id, *more})

    @cached_property
    def model(self) -> Any:
        """The weights in this process, as a `CausalModel`.

        Raises:
            UserError: they do not fit into memory, or cannot be loaded.
        """
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        from synthspec.targets.causal import CausalModel

        logging.disable_progress_bar()  # ours tell what goes on

        check_memory(self.description, self.settings)
        try:
            weights, told = AutoModelForCausalLM.from_pretrained(
                self.place.path,
                revision=self.settings.revision,
                trust_remote_code=False,
                dtype=choose_dtype(self.settings),
                use_safetensors=True,
                output_loading_info=True,
            )
            # What is missing would be made up, and what is left over left out, without a word.
            for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                if told[problem]:
                    raise ValueError(f"{problem.replace('_', ' ')}: {len(told[problem])}")
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UserError(
                f"target.model: the weights of {self.place.name} cannot be loaded ({first_line(error)}): they "
                "are cut short, or are not those of its config.json; copy the model again"
            ) from None
        return CausalModel(weights.to(choose_device(self.settings)))

    @cached_property
    def constraints(self) -> Any:
        """Compiles the grammars' constraints for this target's tokenizer."""
        from synthspec.grammar.constraint import TokenConstraints

        return TokenConstraints(self.tokenizer, self.stop_ids)


def load_target(settings: spec.Target, worker: str = "transformers") -> LoadedTarget:
    """A target.

    Args:
        worker: the kind of worker that answers as the target; another kind's answers differ in their last bits.
    """
    return LoadedTarget(settings, worker)


def _weights_digest(place: Place) -> str | None:
    """Of a folder's weights and settings: names, sizes, and samples from all over; a hub has commits.

    Files up to 8 MB are read whole; of larger ones another layer is seen, a single other number need not be.
    """
    if place.folder is None:
        return None
    digest = hashlib.sha256()
    for path in sorted([*place.folder.glob("*.safetensors"), *place.folder.glob("*config.json")]):
        size = path.stat().st_size
        digest.update(json.dumps([path.name, size]).encode())
        with path.open("rb") as stream:
            for part in range(SAMPLES):
                stream.seek(part * max(0, size - SAMPLE_BYTES) // (SAMPLES - 1))
                digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
