"""The JSON Schemas in schemas/ are those of the models, and the shipped project keeps to them."""

import json
import runpy
from importlib.resources import files
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from synthspec.json_schemas import folder, schemas


def test_schema_files_are_current():
    wanted = schemas()
    there = {path.name: path.read_text("utf-8") for path in folder().glob("*.json")}
    assert sorted(there) == sorted(wanted)
    stale = [name for name, text in wanted.items() if there[name] != text]
    assert not stale, f"run `python -m synthspec.json_schemas`: {stale} are not current"


def test_the_reference_page_is_current():
    docs = Path(__file__).parents[1] / "docs"
    page = runpy.run_path(str(docs / "reference.py"))["page"]()
    assert (docs / "reference.md").read_text("utf-8") == page, "run `make schemas`"


@pytest.mark.parametrize("name", sorted(schemas()))
def test_every_schema_is_one(name):
    jsonschema_rs.validator_for(json.loads(schemas()[name]))


def test_the_example_keeps_to_the_schemas():
    desk = Path(str(files("synthspec.examples"))) / "desk"
    found = {"synthspec": [desk / "synthspec.yaml"], "grammar": sorted((desk / "grammars").glob("*.yaml"))}
    for kind, paths in found.items():
        validator = jsonschema_rs.validator_for(json.loads(schemas()[f"{kind}.schema.json"]))
        assert paths
        for path in paths:
            assert validator.is_valid(yaml.safe_load(path.read_text("utf-8"))), path


def test_every_package_is_installed():
    import tomllib

    root = Path(__file__).parents[1]
    listed = set(tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    made = {".".join(file.parent.relative_to(root).parts) for file in (root / "synthspec").rglob("__init__.py")}
    assert made <= listed
