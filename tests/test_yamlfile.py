"""YAML that people write: each mistake is told with its line, its place and what to write instead."""

from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from synthspec.errors import UserError
from synthspec.spec import Spec, load_spec
from synthspec.yamlfile import check_inside, load_yaml


class Hole(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["city", "date"]
    values: list[str] = []


class Desk(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(description="what it is called")
    holes: dict[str, Hole] = {}
    schema_: dict | None = Field(None, alias="schema")
    either: Hole | list[Hole] | None = None
    which: Literal["any"] | list[str] | None = None
    anything: object = None


def told(tmp_path: Path, text: str, model=Desk) -> list[str]:
    path = tmp_path / "desk.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_yaml(path, model)
    return [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()]


def test_a_right_file_becomes_a_model(tmp_path):
    path = tmp_path / "desk.yaml"
    path.write_text("name: a\nholes: {town: {kind: city}}\nschema: {type: object}\n")
    desk = load_yaml(path, Desk)
    assert desk.holes["town"].kind == "city"
    assert desk.schema_ == {"type": "object"}


def test_plain_words_stay_what_they_look_like(tmp_path):
    path = tmp_path / "desk.yaml"
    path.write_text(
        "name: no\nanything: [yes, 12:30, 007, 2024-05-01, 1_000, 1e-3, -2, true, null, ~, .5, 0x10, .inf]\n"
    )
    assert load_yaml(path, Desk).name == "no"
    assert load_yaml(path, Desk).anything == [
        "yes", "12:30", "007", "2024-05-01", "1_000", 0.001, -2, True, None, None, 0.5, "0x10", ".inf",
    ]  # fmt: skip


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path):
    text = "naem: a\nholes:\n  town:\n    kind: citty\n    vales: [x]\n  day:\n    values: [1]\n"
    lines = told(tmp_path, text)
    assert lines == [
        "1: naem: unknown key, did you mean name?",
        "1: name: is missing; give what it is called",
        "4: holes.town.kind: 'citty' is not possible here; did you mean city?",
        "5: holes.town.vales: unknown key, did you mean values?",
        "6: holes.day.kind: is missing; write it",
        "7: holes.day.values[0]: 1 is wrong here: it must be a text",
    ]


def test_a_dot_is_told_not_to_nest(tmp_path):
    assert told(tmp_path, "name: a\nholes.town: {kind: city}\n") == [
        "2: holes.town: a dot does not nest in YAML; write town below holes, two spaces further in"
    ]


def test_an_alias_is_suggested_under_the_name_that_people_write(tmp_path):
    assert told(tmp_path, "name: a\nshema: {}\n") == ["2: shema: unknown key, did you mean schema?"]


def test_inside_a_union_the_place_is_the_one_in_the_file(tmp_path):
    lines = told(tmp_path, "name: a\neither:\n  - kind: city\n    valeus: []\n")
    assert "4: either[0].valeus: unknown key, did you mean values?" in lines
    assert told(tmp_path, "name: a\nwhich: some\n") == [
        "2: which: 'some' is wrong here: it must be 'any' or a list"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nname: b\n", "2: name: is given twice, first on line 1"),
        ("name: [a\n", "is not YAML"),
        ("name: a\n\tholes: 1\n", "2: is not YAML"),
        ("name: &a [*a]\n", "contains itself"),
        ("name: !!python/object:os.system x\n", "has the tag"),
        ("name: !!binary aGk=\n", "has the tag"),
        ("1: a\n", "the key is not a text"),
        ("? [a]\n: b\n", "has a key that is not a text"),
        ("- a\n", "must be a mapping"),
        ("", "is empty; write at least the keys name"),
        ("name: " + "[" * 5000, "is not YAML"),
        ("name: " + "9" * 5000, "a number of thousands of digits"),
        ('name: "\\ud800"\n', "is not YAML"),
        ("name: !!bool maybe\n", "a value that is not what its tag says"),
        ("name: !!int ''\n", "a value that is not what its tag says"),
        ("name: a\n---\nname: b\n", "is not YAML"),
        ("name: a\n\nb: \x00b\n", "3: holds a control character"),
    ],
)
def test_what_cannot_be_read_is_said_in_words(tmp_path, text, said):
    assert said in "\n".join(told(tmp_path, text))


def test_few_bytes_cannot_become_many_values(tmp_path):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "holds more than" in "\n".join(told(tmp_path, "\n".join(lines)))


def test_missing_folder_binary_and_large_files_are_said_in_words(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="there is no such file"):
        load_yaml(tmp_path / "none.yaml", Desk)
    with pytest.raises(UserError, match="is a folder"):
        load_yaml(tmp_path, Desk)
    with pytest.raises(UserError, match="is no regular file"):
        load_yaml(Path("/dev/zero"), Desk)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe4\n")
    with pytest.raises(UserError, match="not UTF-8"):
        load_yaml(tmp_path / "latin.yaml", Desk)
    monkeypatch.setattr("synthspec.yamlfile.MAX_BYTES", 3)
    (tmp_path / "large.yaml").write_text("name: a\n")
    with pytest.raises(UserError, match="is larger than"):
        load_yaml(tmp_path / "large.yaml", Desk)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "desk.yaml").write_bytes("name: a\n".encode("utf-8-sig"))
    assert load_yaml(tmp_path / "desk.yaml", Desk).name == "a"


def test_a_long_value_is_not_repeated_whole(tmp_path):
    text = f"name: a\nholes: {{town: {{kind: {'x' * 500}}}}}\n"
    assert len(told(tmp_path, text)[0]) < 200


def test_a_path_cannot_leave_its_project(tmp_path):
    home = tmp_path / "project"
    (home / "inner").mkdir(parents=True)
    (tmp_path / "secret.yaml").write_text("name: a\n")
    (home / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    assert check_inside(home, "inner/../x.yaml") == home.resolve() / "x.yaml"
    for path in ("../secret.yaml", "/etc/passwd", "link.yaml", "inner/../../secret.yaml"):
        with pytest.raises(UserError, match="leads out of the project"):
            check_inside(home, path)
    with pytest.raises(UserError, match="leads out of the project"):
        load_yaml(home / "link.yaml", Desk, root=home)


SPEC = "name: a\nprompts: [{name: p, files: [p.jsonl], licence: MIT}]\nmatch: [p]\ngrammars: [g.yaml]\n"


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_what_can_be_no_path_is_told(tmp_path, name):
    with pytest.raises(UserError, match="can be no path"):
        check_inside(tmp_path, name)


def test_a_spec_keeps_to_its_folder(tmp_path):
    path = tmp_path / "synthspec.yaml"
    path.write_text(SPEC)
    assert isinstance(load_spec(path), Spec)
    for text in (SPEC.replace("p.jsonl", "../p.jsonl"), SPEC.replace("g.yaml", "../*.yaml")):
        path.write_text(text)
        with pytest.raises(UserError, match="leads out of the project"):
            load_spec(path)


def test_a_prompt_source_without_a_licence_is_a_mistake(tmp_path):
    assert told(tmp_path, SPEC.replace(", licence: MIT", ""), Spec) == [
        "2: prompts[0].licence: is missing; give SPDX name of the licence of the prompts"
    ]


def test_a_source_that_nobody_gives_is_named(tmp_path):
    (line,) = told(tmp_path, SPEC.replace("match: [p]", "match: [q]"), Spec)
    assert line == "3: match[0]: there is no prompt source 'q'; there are p"


def test_a_source_named_twice_is_a_mistake(tmp_path):
    (line,) = told(tmp_path, SPEC.replace("match: [p]", "match: [p, p]"), Spec)
    assert line == "3: match[1]: the source 'p' is used above already; give each use a source of its own"


def test_sources_of_replay_are_prompt_sources_and_leave_some_for_the_grammars(tmp_path):
    for sources, words in {
        "{sources: {x: 0.5}}": "5: replay.sources.x: there is no prompt source 'x'; there are p",
        "{sources: {p: 0.5, x: 0.5}}": "5: replay: the shares of sources are 1 together, which leaves none for "
        "the grammars; lower one",
        "{sources: {p: 0.5}, share: 0.1}": "5: replay: give either source and share, or sources",
    }.items():
        assert told(tmp_path, f"{SPEC}replay: {sources}\n", Spec) == [words]


def test_what_an_objective_does_not_look_at_is_a_mistake(tmp_path):
    train = "train:\n  objective: lk_lambda\n  negatives: 100\n  cross_entropy_share: 0.1\n"
    assert told(tmp_path, SPEC + train, Spec) == [
        "7: train.negatives: the objective lk_lambda compares whole distributions; remove negatives",
        "8: train.cross_entropy_share: the objective lk_lambda has no such share; remove it",
    ]


def test_mistakes_between_fields_are_told_together_where_they_stand(tmp_path):
    sets = "ood:\n  - {name: dev, source: p}\n  - {name: sums, source: x}\n  - {name: sums, source: y}\n"
    assert told(tmp_path, SPEC + sets, Spec) == [
        "6: ood[0].name: 'dev' is a name that reports use; choose another",
        "6: ood[0].source: the source 'p' is used above already; give each use a source of its own",
        "7: ood[1].source: there is no prompt source 'x'; there are p",
        "8: ood[2].source: there is no prompt source 'y'; there are p",
        "8: ood[2]: the name 'sums' is given twice; remove or rename one",
    ]


@pytest.mark.parametrize("key", ["seed: true", "train: {loss_gamma: false}"])
def test_a_truth_value_is_no_number(tmp_path, key):
    (line,) = told(tmp_path, f"{SPEC}{key}\n", Spec)
    assert "is wrong here: it must be a valid" in line


def test_a_truth_value_hides_no_other_mistake(tmp_path):
    lines = told(tmp_path, f"{SPEC}seed: true\nrows_per_grammar: 0\n", Spec)
    assert [line.split(":")[1] for line in lines] == [" seed", " rows_per_grammar"]


def test_control_characters_and_long_keys_of_a_file_are_shown_short_and_escaped(tmp_path):
    (line,) = told(tmp_path, f'{SPEC}"{"k" * 900}\\e[31m": 1\n', Spec)
    assert line.startswith(f"5: {'k' * 60}…: unknown key")
    assert len(line) < 300
    (line,) = told(tmp_path, f'{SPEC}"a\\e[31m\\nb": 1\n', Spec)
    assert line.startswith(r"5: a\x1b[31m b: unknown key")
