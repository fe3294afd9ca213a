"""Typed holes in a grammar, and the invented values that fill them."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from synthspec.files import content_id
from synthspec.spec import Part

if TYPE_CHECKING:
    from faker import Faker

    from synthspec.grammar.model import Grammar

FieldName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]

MAX_IDENTIFIER = 128  # characters


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


_Days = Annotated[int, Field(ge=0, le=36_500)]


class Date(Part):
    """A day, of a range or so many days after another slot's."""

    type: Literal["date"]
    format: str = Field("%Y-%m-%d", min_length=1, description="as Python's strftime takes it")
    # The range is fixed, because a slot filled again on another day must have the same value.
    from_: datetime.date = Field(datetime.date(2024, 1, 1), alias="from", description="first day")
    to: datetime.date = Field(datetime.date(2026, 12, 31), description="last day")
    after: str | None = Field(
        None, description="a date slot that this one lies behind; from and to do not count"
    )
    days: tuple[_Days, _Days] = Field((1, 14), description="how many days behind it, at least and at most")

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
    min: float = Field(0.0, allow_inf_nan=False)
    max: float = Field(100.0, allow_inf_nan=False)
    decimals: int = Field(2, ge=0, le=12)
    distribution: Distribution = "uniform"

    @model_validator(mode="after")
    def _in_order(self) -> Number:
        _check_range(self.min, self.max, self.distribution)
        return self


class Money(Part):
    """An amount of money as text, such as 1,249.90 EUR."""

    type: Literal["money"]
    min: float = Field(1.0, allow_inf_nan=False)
    max: float = Field(1000.0, allow_inf_nan=False)
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
        import rstr

        try:
            rstr.Rstr(random.Random(0)).xeger(self.pattern)
        except Exception as error:
            raise ValueError(
                f"no text can be invented for the pattern ({type(error).__name__}); write a plainer one"
            ) from None
        return self


class Choice(Part):
    """One of some values, equally likely or by weight."""

    type: Literal["choice"]
    values: (
        Annotated[list[str | int | float | bool], Field(min_length=1)]
        | Annotated[dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(min_length=1)]
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
    Faked | Date | Integer | Number | Money | Identifier | Choice | Text | Record, Field(discriminator="type")
]


def names(slots: Mapping[str, Slot]) -> list[str]:
    """What a mark `<redacted:NAME>` may name: the slots, and each field of a record."""
    found = []
    for name, slot in slots.items():
        found += [f"{name}.{field}" for field in slot.rows[0]] if isinstance(slot, Record) else [name]
    return found


def fill(grammar: Grammar, seed: int) -> dict[str, Any]:
    """Invent a value for each slot: a text, a number, a truth value, or a row of a record.

    A value depends on the seed, the slot's name and the slot alone (and on those that it comes after), so
    that a new slot leaves the others as they are.  Not to be called from two threads at once: Faker is
    seeded for each value.
    """
    return {name: value(slot, _own(seed, name), grammar.slots, seed) for name, slot in grammar.slots.items()}


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
            import rstr

            return rstr.Rstr(dice).xeger(slot.pattern)
        case Choice():
            if isinstance(slot.values, dict):
                return dice.choices([*slot.values], [*slot.values.values()])[0]
            return dice.choice(slot.values)
        case Record():
            return dice.choice(slot.rows)
        case Text():
            faker = _faker(slot.locale)
            faker.seed_instance(own)
            words = faker.words(_whole(slot.min_words, slot.max_words, slot.distribution, dice))
            return " ".join(words).capitalize()


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
