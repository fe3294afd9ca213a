from importlib.util import find_spec
from pathlib import Path

import pytest

from synthspec.grammar.model import load_grammars
from synthspec.ledger import count
from synthspec.prompting.match import match
from synthspec.prompting.pull import pull
from synthspec.prompting.render import render
from synthspec.spec import load_spec
from tests.prompting.prompting_cases import CHAT, tokenizer_with

DESK = Path(__file__).parents[2] / "examples" / "desk"


@pytest.fixture(scope="module")
def spec():
    return load_spec(DESK / "synthspec.yaml")


def test_the_sets_that_must_not_get_worse_are_large_enough_and_share_nothing(spec):
    seen: set[str] = set()
    for source in spec.prompts:
        if source.name in {ood.source for ood in spec.ood}:
            rows, states = pull(source, DESK, seen)
            assert len(rows) >= 40
            assert set(states) == {"kept"}


@pytest.mark.skipif(find_spec("bfcl_eval") is None, reason="the demo's prompts are not installed")
def test_public_prompts_fill_every_grammar_s_quota(spec):
    source = next(source for source in spec.prompts if source.name == "requests")
    prompts, states = pull(source, DESK)
    assert count("prompt", states).kept == len(prompts) > 3000
    grammars = load_grammars(DESK, spec.grammars)
    matches, states = match(prompts, grammars, spec)
    assert count("prompt", states).kept == len(matches)
    held = spec.holdout
    for grammar in grammars:
        mine = [row for row in matches if row["grammar"] == grammar.name]
        assert len(mine) == (held.requests if grammar.name in held.grammars else spec.rows_per_grammar)
        texts = {row["id"]: row["text"] for row in prompts}
        if grammar.name == "money_desk":  # a held-out grammar must be judged on what it is for
            about = ("interest", "invest", "stock", "dollar", "usd", "euro", "price", "mortgage", "currenc")
            hits = sum(any(word in texts[row["prompt_id"]].lower() for word in about) for row in mine)
            assert hits >= 0.9 * len(mine)
    requests, states = render(matches[:50], prompts, grammars, tokenizer_with(CHAT), spec)
    assert count("match", states).kept == len(requests) >= 1
