"""Typed holes in a grammar, and the invented values that fill them."""

from __future__ import annotations

import datetime
import math
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from synthspec.files import content_id
from synthspec.spec import Part
from synthspec.yamlfile import shown

if TYPE_CHECKING:
    from faker import Faker

    from synthspec.grammar.model import Grammar

FieldName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]

MAX_IDENTIFIER = 128  # characters
MAX_TRIED = 500  # whole numbers of a range that are all tried


def _known_locale(locale: str) -> str:
    from faker.config import AVAILABLE_LOCALES

    known = sorted(one for one in AVAILABLE_LOCALES if "_" in one)
    if locale not in known:
        near = [one for one in known if one[:2] == locale[:2].lower()]
        raise ValueError(f"there is no locale {locale!r}; write one such as {', '.join(near or ['en_US'])}")
    return locale


Locale = Annotated[str, AfterValidator(_known_locale)]


Distribution = Annotated[
    Literal["uniform", "normal", "log"],
    Field(description="`uniform`; `normal`, most in the middle; or `log`, each magnitude as likely"),
]


class Faked(Part):
    """A person, company, city, address, postcode, e-mail, phone number or language that Faker invents."""

    type: Literal[
        "person", "company", "city", "street_address", "postcode", "email", "phone", "user_name", "language"
    ]
    locale: Locale = Field("en_US", description="language and country of the value, such as de_DE")

    @model_validator(mode="after")
    def _can_be(self) -> Faked:
        try:
            _faked(self, 0)
        except AttributeError:  # some locales of Faker lack some methods
            raise ValueError(
                f"no {self.type} can be invented for {self.locale}; write another locale"
            ) from None
        return self


def _written_out(value: Any) -> Any:
    """Pydantic would take a number for the seconds since 1970."""
    if isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is no date; write one such as 2024-01-31")
    return value


# What strftime writes alike everywhere; a slot has days and no hours.
_DATE_PARTS = frozenset("aAwdbBmyYjUWGuV%")
_Day = Annotated[datetime.date, BeforeValidator(_written_out)]
_Days = Annotated[int, Field(ge=0, le=36_500)]


class Date(Part):
    """A day, of a range or so many days after another slot's."""

    type: Literal["date"]
    format: str = Field("%Y-%m-%d", min_length=1, description="as Python's strftime takes it")
    # The range is fixed, because a slot filled again on another day must have the same value.
    from_: _Day = Field(datetime.date(2024, 1, 1), alias="from", description="first day")
    to: _Day = Field(datetime.date(2026, 12, 31), description="last day")
    after: str | None = Field(
        None, description="a date slot that this one lies behind; from and to do not count"
    )
    days: tuple[_Days, _Days] = Field((1, 14), description="how many days behind it, at least and at most")

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: str) -> str:
        for found in re.finditer(r"%(.?)", value, re.DOTALL):
            if found[1] not in _DATE_PARTS:
                raise ValueError(
                    f"{found[0]} is no part of a date; write parts such as %d.%m.%Y, and %% for a %"
                )
        return value

    @model_validator(mode="after")
    def _in_order(self) -> Date:
        if self.from_ > self.to:
            raise ValueError(f"from ({self.from_}) lies behind to ({self.to}); swap them")
        if self.days[0] > self.days[1]:
            raise ValueError(f"days ({self.days[0]} to {self.days[1]}) run backwards; swap them")
        return self


class Integer(Part):
    """A whole number."""

    type: Literal["integer"]
    min: int = Field(0, ge=-(10**15), le=10**15)
    max: int = Field(100, ge=-(10**15), le=10**15)
    distribution: Distribution = "uniform"

    @model_validator(mode="after")
    def _in_order(self) -> Integer:
        _check_range(self.min, self.max, self.distribution)
        return self


class Number(Part):
    """A number with decimals, such as an amount of money."""

    type: Literal["number"]
    min: float = Field(0.0, ge=-1e15, le=1e15)
    max: float = Field(100.0, ge=-1e15, le=1e15)
    decimals: int = Field(2, ge=0, le=12)
    distribution: Distribution = "uniform"

    @model_validator(mode="after")
    def _in_order(self) -> Number:
        _check_range(self.min, self.max, self.distribution)
        return self


class Money(Part):
    """An amount of money as text, such as 1,249.90 EUR."""

    type: Literal["money"]
    min: float = Field(1.0, ge=-1e15, le=1e15)
    max: float = Field(1000.0, ge=-1e15, le=1e15)
    decimals: int = Field(2, ge=0, le=4)
    distribution: Distribution = "uniform"
    format: str = Field("{amount} EUR", description="text in which {amount} stands for the number")

    @model_validator(mode="after")
    def _in_order(self) -> Money:
        _check_range(self.min, self.max, self.distribution)
        if "{amount}" not in self.format:
            raise ValueError("format does not show the number; write {amount} in it")
        return self


class Identifier(Part):
    """A text of a pattern, such as a booking code."""

    type: Literal["identifier"]
    pattern: str = Field(
        min_length=1, max_length=2000, description="regular expression, such as PNR-[A-Z]{3}[0-9]{4}"
    )

    @model_validator(mode="after")
    def _ends(self) -> Identifier:
        from synthspec.grammar.schemas import width

        if width(self.pattern)[1] > MAX_IDENTIFIER:
            raise ValueError(
                f"the pattern matches more than {MAX_IDENTIFIER} characters; bound its repetitions, as in "
                "[0-9]{1,8} in place of [0-9]+"
            )
        from synthspec.grammar.invent import text_of

        try:
            for seed in range(8):
                text_of(self.pattern)(random.Random(seed))
        except ValueError:
            raise ValueError("no text can be invented for the pattern; write a plainer one") from None
        return self


class Choice(Part):
    """One of some values, equally likely or by weight."""

    type: Literal["choice"]
    values: (
        Annotated[list[str | int | float | bool], Field(min_length=1)]
        | Annotated[dict[str, Annotated[float, Field(ge=0, le=1e9)]], Field(min_length=1)]
    ) = Field(description="a list of values, or a mapping of each value to its weight")

    @model_validator(mode="after")
    def _weighs(self) -> Choice:
        if isinstance(self.values, dict) and not sum(self.values.values()) > 0:
            raise ValueError("all weights are 0; give at least one value a weight above 0")
        return self


class Text(Part):
    """Some words without a meaning."""

    type: Literal["text"]
    min_words: int = Field(4, ge=1, le=200)
    max_words: int = Field(12, ge=1, le=200)
    distribution: Distribution = "uniform"
    locale: Locale = Field("en_US", description="language of the words, such as de_DE")

    @model_validator(mode="after")
    def _in_order(self) -> Text:
        if self.min_words > self.max_words:
            raise ValueError(f"min_words ({self.min_words}) is larger than max_words ({self.max_words})")
        return self


class Asked(Part):
    """A text that the target writes when it is asked so; a request draws one of so many."""

    type: Literal["asked"]
    ask: str = Field(min_length=1, max_length=4000, description="what the target is asked for, as a user would")
    values: int = Field(32, ge=1, le=1000, description="how often it is asked; answers that repeat count once")
    max_new_tokens: int = Field(48, ge=4, le=1024, description="the most tokens of an answer")
    temperature: float = Field(0.8, gt=0, le=2, description="of sampling; more makes answers less alike")

    @field_validator("ask")
    @classmethod
    def _plain(cls, ask: str) -> str:
        if found := re.search(r"\{\{|\{%|<redacted", ask):
            raise ValueError(f"is asked as it stands, and {found[0]} would mean nothing; write it out")
        return ask


class Record(Part):
    """Values that belong together, such as a city with its postcode: one of some rows.

    `{{ place.city }}` and `<redacted:place.city>` take a field of the row of the slot `place`.
    """

    type: Literal["record"]
    rows: list[dict[FieldName, str | int | float | bool]] = Field(
        min_length=1, description="rows, all with the same fields"
    )

    @model_validator(mode="after")
    def _alike(self) -> Record:
        for number, row in enumerate(self.rows):
            if row.keys() != self.rows[0].keys() or not row:
                raise ValueError(
                    f"rows[{number}] has the fields {', '.join(row) or 'none'}, and rows[0] has "
                    f"{', '.join(self.rows[0]) or 'none'}; give every row the same"
                )
        return self


Slot = Annotated[
    Faked | Date | Integer | Number | Money | Identifier | Choice | Text | Asked | Record,
    Field(discriminator="type"),
]


def names(slots: Mapping[str, Slot]) -> list[str]:
    """What a mark `<redacted:NAME>` may name: the slots, and each field of a record."""
    found = []
    for name, slot in slots.items():
        found += [f"{name}.{field}" for field in slot.rows[0]] if isinstance(slot, Record) else [name]
    return found


def asked_slots(grammars: Iterable[Grammar]) -> list[tuple[Grammar, str, Asked]]:
    """The slots of some grammars that the target fills."""
    return [
        (grammar, name, slot)
        for grammar in grammars
        for name, slot in grammar.slots.items()
        if isinstance(slot, Asked)
    ]


def fill(grammar: Grammar, seed: int, values: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Invent a value for each slot: a text, a number, a truth value, or a row of a record.

    Args:
        values: for each slot of the type `asked`, what the target wrote; without them, words stand there.

    A value depends on the seed, the slot's name and the slot alone (and on those that it comes after), so
    that a new slot leaves the others as they are.  Not to be called from two threads at once: Faker is
    seeded for each value.
    """
    found = {}
    for name, slot in grammar.slots.items():
        texts = (values or {}).get(name)
        own = _own(seed, name)
        found[name] = random.Random(own).choice(texts) if texts else value(slot, own, grammar.slots, seed)
    return found


def fillings(grammar: Grammar, seeds: int, used: Collection[str]) -> Iterator[dict[str, Any]]:
    """Values of the slots to try something with: for some seeds, then every value that some may have.

    Args:
        used: names of the slots whose values count; of one with few values all are tried, of numbers the least
            and the greatest.
    """
    first = fill(grammar, 0)
    yield first
    for seed in range(1, seeds):
        yield fill(grammar, seed)
    for name in sorted(set(used) & grammar.slots.keys()):
        for one in _ends(grammar.slots[name]):
            yield {**first, name: one}


def _ends(slot: Slot) -> Sequence[Any]:
    """All values of a slot that has few, the ends of a range."""
    match slot:
        case Choice():
            values = slot.values
            return [one for one, weight in values.items() if weight] if isinstance(values, dict) else values
        case Record():
            return slot.rows
        case Integer() if slot.max - slot.min < MAX_TRIED:
            return range(slot.min, slot.max + 1)
        case Integer() | Number():
            return [slot.min, slot.max]
    return []


def value(slot: Slot, own: int, slots: Mapping[str, Slot] | None = None, seed: int = 0) -> Any:
    """One invented value of a slot.

    Args:
        own: what the slot's own values are drawn with.
        slots, seed: the grammar's slots and its seed, for a date that comes after another.
    """
    dice = random.Random(own)
    match slot:
        case Faked():
            return _faked(slot, own)
        case Date():
            return _day(slot, own, slots or {}, seed).strftime(slot.format)
        case Integer():
            return _whole(slot.min, slot.max, slot.distribution, dice)
        case Number():
            drawn = round(_drawn(slot.min, slot.max, slot.distribution, dice), slot.decimals)
            return min(max(drawn, slot.min), slot.max) if slot.decimals else round(drawn)
        case Money():
            amount = _drawn(slot.min, slot.max, slot.distribution, dice)
            return slot.format.replace("{amount}", f"{amount:,.{slot.decimals}f}")
        case Identifier():
            from synthspec.grammar.invent import text_of

            return text_of(slot.pattern)(dice)
        case Choice():
            if isinstance(slot.values, dict):
                return dice.choices([*slot.values], [*slot.values.values()])[0]
            return dice.choice(slot.values)
        case Record():
            return dice.choice(slot.rows)
        case Text():
            return _words(slot.locale, _whole(slot.min_words, slot.max_words, slot.distribution, dice), own)
        case Asked():
            return _words("en_US", max(1, slot.max_new_tokens // 2), own)


def _words(locale: str, count: int, seed: int) -> str:
    faker = _faker(locale)
    faker.seed_instance(seed)
    return " ".join(faker.words(count)).capitalize()


def _own(seed: int, name: str) -> int:
    return int(content_id(seed, name), 16)


def _day(slot: Date, own: int, slots: Mapping[str, Slot], seed: int) -> datetime.date:
    """The day of a date slot, counted from the one that it comes after."""
    dice = random.Random(own)
    if slot.after is None:
        return slot.from_ + datetime.timedelta(days=dice.randint(0, (slot.to - slot.from_).days))
    before = slots[slot.after]
    assert isinstance(before, Date)
    day = _day(before, _own(seed, slot.after), slots, seed)
    return day + datetime.timedelta(days=dice.randint(*slot.days))


def _drawn(low: float, high: float, distribution: Distribution, dice: random.Random) -> float:
    """A number of [low, high]: uniform; normal with a sixth of the range as deviation; or log-uniform."""
    match distribution:
        case "uniform":
            return dice.uniform(low, high)
        case "normal":
            return min(max(dice.gauss((low + high) / 2, (high - low) / 6), low), high)
        case "log":
            return min(max(math.exp(dice.uniform(math.log(low), math.log(high))), low), high)


def _whole(low: int, high: int, distribution: Distribution, dice: random.Random) -> int:
    if distribution == "uniform":
        return dice.randint(low, high)
    return round(_drawn(low, high, distribution, dice))


def _check_range(low: float, high: float, distribution: Distribution) -> None:
    if low > high:
        raise ValueError(f"min ({low:g}) is larger than max ({high:g}); swap them")
    if distribution == "log" and low <= 0:
        raise ValueError(f"min ({low:g}) has no magnitude; a log distribution needs one above 0")


def _faked(slot: Faked, seed: int) -> str:
    faker = _faker(slot.locale)
    faker.seed_instance(seed)
    match slot.type:
        case "person":
            return str(faker.name())
        case "company":
            return str(faker.company())
        case "city":
            return str(faker.city())
        case "street_address":
            return " ".join(str(faker.street_address()).split())
        case "postcode":
            return str(faker.postcode())
        case "email":
            return str(faker.safe_email())  # of a domain that belongs to nobody
        case "phone":
            return str(faker.phone_number())
        case "user_name":
            return str(faker.user_name())
        case "language":
            return str(faker.language_name())


@lru_cache(maxsize=16)
def _faker(locale: str) -> Faker:
    """One generator per locale: making one takes a tenth of a second, seeding it microseconds."""
    from faker import Faker

    return Faker(locale)
