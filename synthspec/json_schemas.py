"""JSON Schemas of every file that people or programs write; `python -m synthspec.json_schemas` writes them."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from synthspec.acceptance.result import Acceptance, ExportManifest, TrainingLog
from synthspec.files import write_text
from synthspec.grammar.model import Grammar
from synthspec.ledger import Ledger
from synthspec.run import Manifest
from synthspec.spec import Spec

MODELS: dict[str, tuple[type[BaseModel], str]] = {
    "synthspec": (Spec, "synthspec.yaml"),
    "grammar": (Grammar, "a grammar"),
    "manifest": (Manifest, "manifest.json of a run"),
    "ledger": (Ledger, "ledger.json of a run"),
    "acceptance": (Acceptance, "acceptance.json of a run"),
    "training-log": (TrainingLog, "checkpoints/log.json of a run"),
    "export-manifest": (ExportManifest, "manifest.json of an export"),
}


def schemas() -> dict[str, str]:
    """The text of every schema file by its name."""
    found: dict[str, str] = {}
    for name, (model, title) in MODELS.items():
        schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        schema.update(model.model_json_schema(by_alias=True))
        schema["title"] = title
        found[f"{name}.schema.json"] = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    return found


def folder() -> Path:
    """Where the schema files are."""
    return Path(str(files("synthspec.schemas")))


if __name__ == "__main__":
    for name, text in schemas().items():
        write_text(folder() / name, text)
        print(folder() / name)
