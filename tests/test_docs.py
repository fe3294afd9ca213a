"""What the pages about grammars and training show is right."""

import re
from pathlib import Path
from typing import get_args

import pytest

from synthspec.grammar.model import load_grammars
from synthspec.spec import Objective

PAGE = Path(__file__).parents[1] / "docs" / "grammars.md"
GRAMMARS = re.findall(r"^```yaml grammar\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", GRAMMARS, ids=lambda text: text.split()[1])
def test_a_grammar_on_the_page_is_right(tmp_path, text):
    (tmp_path / "g.yaml").write_text(text)
    load_grammars(tmp_path, ["g.yaml"])


def test_there_is_a_grammar_of_every_kind_but_one():
    kinds = {re.search(r"^kind: (\w+)", text, re.MULTILINE)[1] for text in GRAMMARS}
    assert kinds == {"tool_call", "code", "text"}


def test_every_objective_has_its_row():
    page = (PAGE.parent / "training.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(get_args(Objective))
