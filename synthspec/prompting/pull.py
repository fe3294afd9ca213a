"""Pull: public prompts out of hub datasets, files, or files inside an installed package."""

from __future__ import annotations

import glob
import importlib.util
import json
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import datasets

from synthspec.errors import UserError, first_line
from synthspec.files import content_id, file_digest
from synthspec.spec import PromptSource
from synthspec.yamlfile import check_inside

Row = dict[str, Any]
_MISSING = object()
_UNSTATED = {"", "unknown", "other", "none", "?"}


def pull(
    source: PromptSource,
    root: Path,
    seen: set[str] | None = None,
    tick: Callable[[int], None] = lambda n: None,
) -> tuple[list[Row], list[str]]:
    """Read the prompts of one source.

    Args:
        source: where they are, and under which licence.
        root: the folder of the spec; files may not lie outside of it.
        seen: texts that earlier sources gave; those of this source are added, so that one set handed
            from source to source leaves every text once.
        tick: called with the number of rows read.

    Returns:
        Rows of `PROMPTS` in the order of the source, and one state for each row that was read: kept,
        duplicate (the text was there before) or invalid (no text at the column, or not valid Unicode).
        Reading ends with the row that fills the source's limit.

    Raises:
        UserError: the licence is not stated, a package or a file or the dataset is missing, a line is
            not JSON, or no row has the column.
    """
    if source.licence.strip().lower() in _UNSTATED:
        raise UserError(
            f"source '{source.name}': state the licence of its prompts, an SPDX name such as CC-BY-4.0"
        )
    seen = set() if seen is None else seen
    rows: list[Row] = []
    states: list[str] = []
    has_column, first = False, None
    for dataset, revision, number, value in _values(source, root):
        text = _at(value, source.column)
        has_column = has_column or text is not _MISSING
        first = value if not states else first
        text = text.strip() if isinstance(text, str) else ""
        if not text or not _is_unicode(text):
            states.append("invalid")
        elif text in seen:
            states.append("duplicate")
        else:
            seen.add(text)
            states.append("kept")
            rows.append(
                {
                    "id": content_id("prompt", text),
                    "text": text,
                    "source": source.name,
                    "dataset": dataset,
                    "revision": revision,
                    "row": number,
                    "licence": source.licence,
                }
            )
        tick(1)
        if len(rows) == source.limit:
            break
    if not states:
        raise UserError(f"source '{source.name}' holds no rows: check its files")
    if not has_column:
        instead = _instead(first, source.column)
        raise UserError(f"source '{source.name}': no row has the column '{source.column}'; {instead}")
    return rows, states


def _values(source: PromptSource, root: Path) -> Iterator[tuple[str, str, int, Any]]:
    """Dataset, revision, number (from 0) and value of each row."""
    if source.dataset:
        for number, row in enumerate(_from_hub(source)):
            yield source.dataset, source.revision or "", number, row
        return
    folder, version = installed_package(source) if source.package else (root, "")
    for name in source.files:
        path = folder / name
        check_inside(folder, path)
        if not path.is_file():
            where = f" inside the package {source.package}" if source.package else ""
            raise UserError(f"source '{source.name}': there is no file {name}{where}; looked for {path}")
        revision = version or f"sha256:{file_digest(path)[:16]}"
        dataset = f"{source.package}/{name}" if source.package else name
        for number, row in enumerate(_from_file(source, path)):
            if row is not _MISSING:
                yield dataset, revision, number, row


def _from_hub(source: PromptSource) -> Iterator[Any]:
    try:
        table = datasets.load_dataset(
            source.dataset, name=source.config, split=source.split, revision=source.revision
        )
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"source '{source.name}': the dataset {source.dataset} at revision {source.revision} cannot be "
            f"read ({first_line(error)}); check its name, config and split, and the network"
        ) from None
    yield from table


def _from_file(source: PromptSource, path: Path) -> Iterator[Any]:
    """Rows of a file; a blank line of a JSON-lines file is `_MISSING`, so that row numbers are line numbers."""
    if path.suffix == ".parquet":
        yield from _load("parquet", source, path)
        return
    # Public sets put different types under one key from line to line, which a table cannot hold: take the
    # lines as text and parse each one alone.
    for number, line in enumerate(_load("text", source, path), start=1):
        text = line["text"].removeprefix("\ufeff")
        try:
            yield json.loads(text) if text.strip() else _MISSING
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"source '{source.name}': {path.name} line {number} is not JSON "
                f"({first_line(error)}); write one JSON object a line"
            ) from None


def _load(kind: str, source: PromptSource, path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a file, read by one of the builders of `datasets`; nothing is copied into its cache."""
    try:
        table = datasets.load_dataset(kind, data_files=[glob.escape(str(path))], split="train", streaming=True)
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)
        for batch in table.iter(batch_size=1000):
            yield from (dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"source '{source.name}': {path} cannot be read as {kind} ({first_line(error)})"
        ) from None


def installed_package(source: PromptSource) -> tuple[Path, str]:
    """The folder of an installed package, found without importing it, and its version."""
    package = source.package or ""
    found = importlib.util.find_spec(package) if package.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        project = package.replace("_", "-")
        raise UserError(
            f"source '{source.name}': the package {package} is not installed; "
            f"run `pip install --no-deps {project}`"
        )
    names = metadata.packages_distributions().get(package, [package])
    try:
        version = metadata.version(names[0])
    except metadata.PackageNotFoundError:
        raise UserError(
            f"source '{source.name}': the package {package} has no version; install it with pip, "
            "so that its prompts can be named again"
        ) from None
    return Path(found.submodule_search_locations[0]), f"{names[0]}=={version}"


def _at(value: Any, column: str) -> Any:
    """What stands at a dotted path: a key of an object, a number in a list, or in a list of chat
    messages a role, which takes the first message of that role; else `_MISSING`."""
    for step in column.split("."):
        if isinstance(value, dict):
            value = value.get(step, _MISSING)
        elif isinstance(value, list) and step.isdecimal():
            value = value[int(step)] if int(step) < len(value) else _MISSING
        elif isinstance(value, list):
            of_role = (item for item in value if isinstance(item, dict) and item.get("role") == step)
            value = next(of_role, _MISSING)
        else:
            return _MISSING
    return value


def _instead(value: Any, column: str) -> str:
    """Says where a dotted path ends, and what is there instead; names keys, never values."""
    done: list[str] = []
    for step in column.split("."):
        inner = _at(value, step)
        if inner is _MISSING:
            break
        value = inner
        done.append(step)
    where = f"under '{'.'.join(done)}' the first row" if done else "the first row"
    if isinstance(value, dict):
        return f"{where} has {', '.join(map(str, value)) or 'no keys'}"
    if isinstance(value, list):
        roles = {str(item["role"]) for item in value if isinstance(item, dict) and "role" in item}
        usual = ", ".join(role for role in ("system", "user", "assistant", "tool") if role in roles)
        of_roles = f" with the roles {usual}" if usual else ""
        return f"{where} has a list of {len(value)}{of_roles}"
    return f"{where} has a {'null' if value is None else type(value).__name__}"


def _is_unicode(text: str) -> bool:
    """False for a text with half of a surrogate pair, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
