"""Conversations in which the target writes earlier turns too: each answer leads to the next request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from synthspec.grammar.conform import judge
from synthspec.grammar.model import Grammar
from synthspec.prompting.render import Conversations

Row = dict[str, Any]


class Exchanges:
    """What the target has said so far in each conversation.

    Args:
        conversations: writes the requests.
        matches: rows of `MATCHES`, those of the requests at least.
        grammars: by name.
        tokenizer: the target's.
    """

    def __init__(
        self,
        conversations: Conversations,
        matches: Iterable[Row],
        grammars: Mapping[str, Grammar],
        tokenizer: Any,
    ) -> None:
        self._conversations = conversations
        self._matches = {row["id"]: row for row in matches}
        self._grammars = grammars
        self._tokenizer = tokenizer
        self._said: dict[str, tuple[Any, ...]] = {}  # up to a request's answer, by the request's id

    def go_on(self, requests: Iterable[Row], completions: Iterable[Row]) -> tuple[list[Row], int]:
        """The requests that follow the answers to some.

        Args:
            requests: rows of `REQUESTS`, all of the same turn; the turns before were given here earlier.
            completions: rows of `COMPLETIONS` that answer them.

        Returns:
            The next turn's requests, and how many conversations became too long, or hold what does not fit.
            A conversation ends where an answer is not what the grammar asks for.
        """
        answers = {row["request_id"]: row for row in completions}
        rows: list[Row] = []
        invalid = 0
        for request in requests:
            grammar = self._grammars.get(request["grammar"])
            answer = answers.get(request["id"])
            if grammar is None or answer is None or request["turn"] >= len(grammar.played):
                continue
            verdict = judge(request, answer["ids"], answer["finish_reason"], grammar, self._tokenizer)
            if verdict.state != "kept":
                continue
            said = (*self._said.get(request["follows"], ()), verdict.value)
            self._said[request["id"]] = said
            row = self._conversations.go_on(self._matches[request["match_id"]], request, said)
            if row is None:
                invalid += 1
            else:
                rows.append(row)
        return rows, invalid
