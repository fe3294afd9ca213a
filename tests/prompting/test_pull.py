import json
import socket
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synthspec.errors import UserError
from synthspec.ledger import count
from synthspec.prompting.pull import pull
from synthspec.spec import PromptSource


def source(**fields):
    return PromptSource(**{"name": "asks", "files": ["asks.jsonl"], "licence": "CC0-1.0", **fields})


def write(folder: Path, *lines: object, name: str = "asks.jsonl") -> None:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / name).write_text(text + "\n", encoding="utf-8")


def test_every_row_has_one_state_and_kept_ones_say_where_they_come_from(tmp_path):
    write(
        tmp_path,
        {"prompt": " one "},
        "",
        {"prompt": "two"},
        {"prompt": "one"},
        "null",
        {"prompt": None},
        {"prompt": ["a"]},
        {"prompt": "   "},
        {"prompt": "half \ud83d"},
        {"other": 1},
        {"prompt": "line\u2028end"},
    )
    rows, states = pull(source(), tmp_path)
    assert states == ["kept", "kept", "duplicate", *["invalid"] * 6, "kept"]
    assert [(row["text"], row["row"]) for row in rows] == [("one", 0), ("two", 2), ("line\u2028end", 10)]
    counts = count("prompt", states)
    assert (counts.requested, counts.kept) == (10, len(rows))
    assert {row["licence"] for row in rows} == {"CC0-1.0"}
    assert all(row["dataset"] == "asks.jsonl" and row["revision"].startswith("sha256:") for row in rows)


def test_the_id_is_the_text_s_alone(tmp_path):
    write(tmp_path, {"prompt": "one"}, {"prompt": "two"})
    write(tmp_path, {"q": "two"}, name="other.jsonl")
    rows, _ = pull(source(), tmp_path)
    again, _ = pull(source(name="b", files=["other.jsonl"], column="q"), tmp_path)
    assert rows[1]["id"] == again[0]["id"] != rows[0]["id"]


def test_a_text_is_a_duplicate_across_sources(tmp_path):
    write(tmp_path, {"prompt": "one"})
    seen: set[str] = set()
    assert pull(source(), tmp_path, seen)[1] == ["kept"]
    assert pull(source(name="b"), tmp_path, seen) == ([], ["duplicate"])


def test_columns_lead_through_lists_and_to_roles(tmp_path):
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    write(tmp_path, {"a": [[{"content": 1}], chat]}, {"a": [[], chat[:1]]}, {"a": [[], chat]})
    rows, states = pull(source(column="a.1.user.content"), tmp_path)
    assert [row["text"] for row in rows] == ["u"]
    assert states == ["kept", "invalid", "duplicate"]
    assert pull(source(column="a.1.0.content"), tmp_path)[0][0]["text"] == "s"


def test_file_names_are_no_patterns_and_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a[1]*.jsonl").write_bytes(b"\xef\xbb\xbf" + b'{"prompt": "One?"}\n{"prompt": "Two?"}\n')
    (tmp_path / "a1.jsonl").write_text('{"prompt": "Another?"}\n')
    rows, _ = pull(source(files=["a[1]*.jsonl"]), tmp_path)
    assert [row["text"] for row in rows] == ["One?", "Two?"]


def test_types_may_change_from_line_to_line(tmp_path):
    write(tmp_path, {"prompt": "one", "x": 1}, {"prompt": "two", "x": {"y": []}}, {"prompt": "three", "x": "z"})
    assert pull(source(), tmp_path)[1] == ["kept"] * 3


def test_reading_ends_at_the_limit(tmp_path):
    write(tmp_path, *({"prompt": f"ask {n // 2}"} for n in range(20)))
    rows, states = pull(source(limit=3), tmp_path)
    assert len(rows) == 3
    assert len(states) == 5


def test_parquet(tmp_path):
    pq.write_table(pa.table({"q": ["one", None, "two"]}), tmp_path / "asks.parquet")
    rows, states = pull(source(files=["asks.parquet"], column="q"), tmp_path)
    assert [row["row"] for row in rows] == [0, 2]
    assert states == ["kept", "invalid", "kept"]
    with pytest.raises(UserError, match=r"no row has the column 'prompt'; the first row has q"):
        pull(source(files=["asks.parquet"]), tmp_path)


@pytest.mark.skipif(find_spec("bfcl_eval") is None, reason="the demo's prompts are not installed")
def test_a_package_s_files_carry_its_version():
    asked = source(
        package="bfcl_eval", files=["data/BFCL_v4_live_parallel.json"], column="question.0.user.content"
    )
    rows, _ = pull(asked, Path("/"))
    assert rows[0]["dataset"] == "bfcl_eval/data/BFCL_v4_live_parallel.json"
    assert rows[0]["revision"].startswith("bfcl_eval==")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"files": ["gone.jsonl"]}, "no file gone.jsonl"),
        ({"files": ["../gone.jsonl"]}, "leads out of the project"),
        ({"column": "question"}, "no row has the column 'question'; the first row has prompt, chat"),
        ({"column": "chat.assistant"}, "under 'chat' the first row has a list of 1 with the roles user"),
        ({"column": "prompt.text"}, "under 'prompt' the first row has a str"),
        ({"licence": " "}, "state the licence"),
        ({"licence": "unknown"}, "state the licence"),
        ({"files": ["broken.jsonl"]}, "broken.jsonl line 2 is not JSON"),
        ({"files": ["empty.jsonl"]}, "holds no rows"),
        ({"files": ["latin.jsonl"]}, "cannot be read as text"),
        ({"files": ["not.parquet"]}, "cannot be read as parquet"),
        ({"package": "no_such_package"}, "pip install --no-deps no-such-package"),
        ({"package": "bfcl_eval", "files": ["gone.json"]}, "no file gone.json inside the package bfcl_eval"),
    ],
)
def test_mistakes_are_told_in_words(tmp_path, fields, told):
    write(tmp_path, {"prompt": "SECRET", "chat": [{"role": "user"}]})
    write(tmp_path, {"prompt": "SECRET"}, '{"prompt": "SECRET"', name="broken.jsonl")
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "caf\xe9"}\n')
    (tmp_path / "not.parquet").write_bytes(b"text")
    with pytest.raises(UserError) as caught:
        pull(source(**fields), tmp_path)
    assert told in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_a_hub_dataset_is_asked_for_at_its_revision(monkeypatch, tmp_path):
    asked = {}

    def load(path, **options):
        asked.update(options, dataset=path)
        return iter([{"q": "one"}])

    monkeypatch.setattr("datasets.load_dataset", load)
    hub = source(files=[], dataset="owner/set", revision="abc", config="en", split="test", column="q")
    rows, _ = pull(hub, tmp_path)
    assert asked == {"dataset": "owner/set", "name": "en", "split": "test", "revision": "abc"}
    assert (rows[0]["dataset"], rows[0]["revision"]) == ("owner/set", "abc")


def test_a_hub_dataset_that_cannot_be_had_is_told_in_words(monkeypatch, tmp_path):
    def load(path, **options):
        raise ConnectionError("no network\nsecond line")

    monkeypatch.setattr("datasets.load_dataset", load)
    with pytest.raises(UserError, match=r"owner/set at revision abc cannot be read \(no network\)"):
        pull(source(files=[], dataset="owner/set", revision="abc"), tmp_path)


def test_reading_files_opens_no_connection(tmp_path, monkeypatch):
    tried: list[object] = []

    def refuse(self: socket.socket, address: object) -> None:
        tried.append(address)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    write(tmp_path, {"prompt": "one"})
    pq.write_table(pa.table({"prompt": ["two"]}), tmp_path / "more.parquet")
    rows, _ = pull(source(files=["asks.jsonl"]), tmp_path)
    more, _ = pull(source(files=["more.parquet"]), tmp_path)
    assert [row["text"] for row in rows + more] == ["one", "two"]
    assert tried == []
