import random

import pytest

from synthspec.errors import UserError
from synthspec.ledger import Counts, count
from synthspec.samples.assemble import assemble, write
from synthspec.samples.card import card
from synthspec.samples.dedup import jaccard, text_shingles
from synthspec.samples.schema import SAMPLES, read_rows
from synthspec.spec import Spec

SPEC = Spec.model_validate(
    {
        "name": "trial",
        "prompts": [
            {"name": n, "files": [f"{n}.jsonl"], "licence": "CC0-1.0"} for n in ("asks", "general", "chat")
        ],
        "match": ["asks"],
        "grammars": ["*.yaml"],
        "holdout": {"grammars": ["kept_out"], "prompts": 0.25, "requests": 8},
        "replay": {"source": "general", "share": 0.25},
        "ood": [{"name": "talk", "source": "chat", "requests": 5}],
    }
)
WORDS = [f"word{n}" for n in range(400)]


class Made:
    """Samples that have nothing in common unless they are told to."""

    def __init__(self) -> None:
        self.dice = random.Random(0)
        self.prompts: list[dict] = []
        self.samples: list[dict] = []

    def text(self) -> str:
        return " ".join(self.dice.choices(WORDS, k=12))

    def ids(self) -> list[int]:
        return [self.dice.randrange(1000) for _ in range(40)]

    def add(self, grammar: str | None, text: str = "", ids: list[int] | None = None, **fields) -> dict:
        n = len(self.samples)
        ids = ids or self.ids()
        self.prompts.append({"id": f"prompt{n:03}", "text": text or self.text()})
        lineage = {field.name: f"{field.name}{n}" for field in SAMPLES.field("lineage").type}
        row = {
            "id": f"{self.dice.getrandbits(40):010x}",
            "purpose": "grammar" if grammar else "replay",
            "grammar": grammar,
            "set": None,
            "turn": 0,
            "input_ids": [1, 2, 3, *ids],
            "prompt_tokens": 3,
            "loss_mask": [0, 0, 0] + [1] * len(ids),
            "spans": [{"kind": "free", "start": 3, "end": 3 + len(ids)}],
            "constraint": None,
            "held": False,
            "max_new_tokens": 64,
            "lineage": {**lineage, "prompt_id": f"prompt{n:03}", "row": n, "licence": "CC0-1.0", "target": "t"},
            **fields,
        }
        self.samples.append(row)
        return row

    def states(self) -> dict[str, str]:
        _, states = assemble(self.samples, self.prompts, SPEC)
        assert count("sample", states).requested == len(self.samples)
        return {row["id"]: state for row, state in zip(self.samples, states, strict=True)}


@pytest.fixture
def made() -> Made:
    made = Made()
    for name in ("one", "two"):
        for _ in range(20):
            made.add(name)
    for _ in range(10):
        made.add("kept_out")
        made.add(None)
    for _ in range(5):
        made.add(None, purpose="ood", set="talk")
    return made


def test_every_sample_is_in_one_set_or_has_its_reason_not_to_be(made):
    sets, states = assemble(made.samples, made.prompts, SPEC)
    assert {name: len(rows) for name, rows in sets.items()} == {
        "train": 35,
        "dev": 5,
        "heldout_prompts": 10,
        "grammar_kept_out": 8,
        "talk": 5,
    }
    assert sum(row["purpose"] == "replay" for row in sets["train"]) == 9  # a quarter
    assert sorted(row["grammar"] or "" for row in sets["dev"]) == ["", "one", "one", "two", "two"]
    assert count("sample", states) == Counts("sample", 65, 35, {"heldout": 28, "surplus": 2})
    placed = [row["id"] for rows in sets.values() for row in rows]
    assert len(placed) == len(set(placed)) == 63
    assert all(rows == sorted(rows, key=lambda row: row["id"]) for rows in sets.values())


def test_every_source_of_replay_fills_its_share(made):
    for number, row in enumerate(row for row in made.samples if row["purpose"] == "replay"):
        row["lineage"]["source"] = "chat" if number % 2 else "general"
    replay = SPEC.replay.model_validate({"sources": {"general": 0.1, "chat": 0.05}})
    sets, states = assemble(made.samples, made.prompts, SPEC.model_copy(update={"replay": replay}))
    taken = [row["lineage"]["source"] for row in sets["train"] if row["purpose"] == "replay"]
    trained = len(sets["train"]) - len(taken)
    assert trained == 26
    assert (taken.count("general"), taken.count("chat")) == (3, 2)  # 26 · 0.1 / 0.85, and half as many
    assert (
        count("sample", states).dropped["surplus"] == 10 - 1 - 5 + 2
    )  # of replay, and of the held-out grammar


def test_the_order_of_samples_does_not_matter(made):
    sets, states = assemble(made.samples, made.prompts, SPEC)
    order = random.Random(1).sample(range(65), 65)
    again, states_again = assemble([made.samples[place] for place in order], made.prompts[::-1], SPEC)
    assert again == sets
    assert states_again == [states[place] for place in order]


def test_the_same_completion_is_a_duplicate_and_so_is_nearly_the_same_sample(made):
    first, second = made.samples[:2]
    same = made.add("one", ids=first["input_ids"][3:])
    near = made.add("one", text=made.prompts[1]["text"].upper(), ids=[*second["input_ids"][3:-1], 7])
    states = made.states()
    for pair in ((first, same), (second, near)):
        kept, dropped = sorted(pair, key=lambda row: row["id"])
        assert states[kept["id"]] in ("kept", "heldout")
        assert states[dropped["id"]] == "duplicate"


@pytest.mark.parametrize("pool", ["grammar_kept_out", "talk"])
def test_what_stands_in_an_evaluation_set_is_not_trained_on(made, pool):
    judged = assemble(made.samples, made.prompts, SPEC)[0][pool][0]
    text = next(row["text"] for row in made.prompts if row["id"] == judged["lineage"]["prompt_id"])
    ids = judged["input_ids"][3:]
    planted = [
        made.add(None, ids=ids),
        made.add(None, ids=[*ids[:-1], 7]),
        made.add(None, text=text.upper() + "!"),
    ]
    states = made.states()
    assert states[judged["id"]] == "heldout"
    assert [states[row["id"]] for row in planted] == ["contaminated"] * 3


def test_twins_of_a_prompt_never_straddle_the_split(made):
    for _ in range(12):
        words = made.text()
        for n in range(3):
            made.add("one", text=f"{words} {WORDS[n]}")
    sets, _ = assemble(made.samples, made.prompts, SPEC)
    texts = {row["id"]: text_shingles(row["text"]) for row in made.prompts}
    trained, judged = (
        [texts[row["lineage"]["prompt_id"]] for row in sets[name]] for name in ("train", "heldout_prompts")
    )
    assert max(jaccard(one, two) for one in trained for two in judged) < 0.5
    assert len(judged) == 13  # of one grammar as many as may be measured, of the other its quarter


def test_nothing_in_nothing_out():
    sets, states = assemble([], [], SPEC)
    assert states == []
    assert list(sets) == ["train", "dev", "heldout_prompts", "grammar_kept_out", "talk"]


def test_the_written_folder_loads_and_its_card_tells_what_is_in_it(made, tmp_path):
    import datasets
    import pyarrow.parquet as pq

    sets, states = assemble(made.samples, made.prompts, SPEC)
    text = card(SPEC, sets, {"assemble": count("sample", states)})
    write(tmp_path, sets, text)
    assert sorted(path.stem for path in (tmp_path / "sets").iterdir()) == [
        "dev",
        "grammar_kept_out",
        "heldout_prompts",
        "talk",
    ]
    assert pq.read_table(tmp_path / "trainset" / "train.parquet").to_pylist() == sets["train"]
    loaded = datasets.load_dataset(str(tmp_path / "trainset"), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["id"][:] == [row["id"] for row in sets["train"]]
    assert "| assemble | sample | 65 | 35 | 28 heldout, 2 surplus |" in text
    assert "| one | 13 |" in text
    assert "license:\n- cc0-1.0" in text
    again = tmp_path / "again"
    write(again, sets, text)
    one, two = ((folder / "trainset" / "train.parquet").read_bytes() for folder in (tmp_path, again))
    assert one == two


@pytest.mark.parametrize("content", [b"", b"PAR1 cut short", None])
def test_a_damaged_or_missing_table_is_told_in_words(tmp_path, content):
    path = tmp_path / "rows.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"rows\.parquet is (damaged|missing): run again with --fresh"):
        read_rows(path)
