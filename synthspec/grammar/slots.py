"""Typed holes in a grammar, and the invented values that fill them."""

from __future__ import annotations

import datetime
import random
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from synthspec.files import content_id
from synthspec.spec import Part

if TYPE_CHECKING:
    from faker import Faker

    from synthspec.grammar.model import Grammar

MAX_IDENTIFIER = 128  # characters


def _known_locale(locale: str) -> str:
    from faker.config import AVAILABLE_LOCALES

    known = sorted(one for one in AVAILABLE_LOCALES if "_" in one)
    if locale not in known:
        near = [one for one in known if one[:2] == locale[:2].lower()]
        raise ValueError(f"there is no locale {locale!r}; write one such as {', '.join(near or ['en_US'])}")
    return locale


Locale = Annotated[str, AfterValidator(_known_locale)]


class Faked(Part):
    """A person, company, city, address, e-mail or phone number that Faker invents."""

    type: Literal["person", "company", "city", "street_address", "email", "phone"]
    locale: Locale = Field("en_US", description="language and country of the value, such as de_DE")


class Date(Part):
    """A day."""

    type: Literal["date"]
    format: str = Field("%Y-%m-%d", min_length=1, description="as Python's strftime takes it")
    # The range is fixed, because a slot filled again on another day must have the same value.
    from_: datetime.date = Field(datetime.date(2024, 1, 1), alias="from", description="first day")
    to: datetime.date = Field(datetime.date(2026, 12, 31), description="last day")

    @model_validator(mode="after")
    def _in_order(self) -> Date:
        if self.from_ > self.to:
            raise ValueError(f"from ({self.from_}) lies behind to ({self.to}); swap them")
        return self


class Integer(Part):
    """A whole number, every one of the range as likely."""

    type: Literal["integer"]
    min: int = 0
    max: int = 100

    @model_validator(mode="after")
    def _in_order(self) -> Integer:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is larger than max ({self.max}); swap them")
        return self


class Number(Part):
    """A number with decimals, such as an amount of money."""

    type: Literal["number"]
    min: float = Field(0.0, allow_inf_nan=False)
    max: float = Field(100.0, allow_inf_nan=False)
    decimals: int = Field(2, ge=0, le=12)

    @model_validator(mode="after")
    def _in_order(self) -> Number:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is larger than max ({self.max}); swap them")
        return self


class Identifier(Part):
    """A text of a pattern, such as a booking code."""

    type: Literal["identifier"]
    pattern: str = Field(min_length=1, description="regular expression, such as PNR-[A-Z]{3}[0-9]{4}")

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
    locale: Locale = Field("en_US", description="language of the words, such as de_DE")

    @model_validator(mode="after")
    def _in_order(self) -> Text:
        if self.min_words > self.max_words:
            raise ValueError(f"min_words ({self.min_words}) is larger than max_words ({self.max_words})")
        return self


Slot = Annotated[Faked | Date | Integer | Number | Identifier | Choice | Text, Field(discriminator="type")]


def fill(grammar: Grammar, seed: int) -> dict[str, Any]:
    """Invent a value for each slot: a text, a number or a truth value.

    A value depends on the seed, the slot's name and the slot alone, so that a new slot leaves the
    others as they are.  Not to be called from two threads at once: Faker is seeded for each value.
    """
    return {name: value(slot, int(content_id(seed, name), 16)) for name, slot in grammar.slots.items()}


def value(slot: Slot, seed: int) -> Any:
    """One invented value of a slot."""
    dice = random.Random(seed)
    match slot:
        case Faked():
            return _faked(slot, seed)
        case Date():
            days = (slot.to - slot.from_).days
            return (slot.from_ + datetime.timedelta(days=dice.randint(0, days))).strftime(slot.format)
        case Integer():
            return dice.randint(slot.min, slot.max)
        case Number():
            return round(dice.uniform(slot.min, slot.max), slot.decimals)
        case Identifier():
            import rstr

            return rstr.Rstr(dice).xeger(slot.pattern)
        case Choice():
            if isinstance(slot.values, dict):
                return dice.choices([*slot.values], [*slot.values.values()])[0]
            return dice.choice(slot.values)
        case Text():
            faker = _faker(slot.locale)
            faker.seed_instance(seed)
            words = faker.words(dice.randint(slot.min_words, slot.max_words))
            return " ".join(words).capitalize()


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
            return str(faker.street_address())
        case "email":
            return str(faker.safe_email())  # of a domain that belongs to nobody
        case "phone":
            return str(faker.phone_number())


@lru_cache(maxsize=16)
def _faker(locale: str) -> Faker:
    """One generator per locale: making one takes a tenth of a second, seeding it microseconds."""
    from faker import Faker

    return Faker(locale)
