"""All exceptions. A message says what is wrong and where, what is expected, and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Real
from reprlib import Repr
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pydantic import ValidationError

_shorten = Repr()
_shorten.maxstring = _shorten.maxother = _shorten.maxlong = 60


class BundleMageError(Exception):
    """An error that the caller can fix. The command line prints it and exits with 2."""

    def __reduce__(self) -> tuple[object, ...]:
        """Lets an error be sent to another process unchanged."""
        return Exception.__new__, (type(self), *self.args), self.__dict__


@dataclass(frozen=True)
class Problem:
    """One kind of fault in one file or table: the first instance in full, and the number of further ones."""

    kind: str
    """A name for programs and tests that does not change, e.g. `missing-file`."""
    where: str
    """The file, table or frame, as the user named it."""
    message: str
    """What is wrong and what is expected."""
    fix: str
    """What to do about it."""
    line: int | None = None
    """The line of the first instance in a text file, or its row in a table, counted from 1."""
    value: str | None = None
    """The offending value of the first instance."""
    more: int = 0
    """The number of further instances of the same kind in the same place."""
    severity: Literal["error", "warning", "note"] = "error"
    """After an error nothing is loaded. After a warning the data is loaded, but `data check` still fails.
    A note only says how the data was read."""
    names: tuple[str, ...] = ()
    """The columns or files, if the problem is about several."""

    def __str__(self) -> str:
        place = self.where if self.line is None else f"{self.where}:{self.line}"
        more = f" ({self.more:,} more like this)" if self.more else ""
        return f"{place}: {self.message}{more}. {self.fix}"


class DataError(BundleMageError):
    """The data cannot be used. `problems` has every problem, not only the first."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        told = (problem for problem in self.problems if problem.severity != "note")
        super().__init__("\n".join(map(str, told)))

    @classmethod
    def of(
        cls, kind: str, where: str, message: str, fix: str, line: int | None = None, value: str | None = None
    ) -> DataError:
        """Returns an error with a single problem. The parameters are the fields of `Problem`."""
        return cls(Problem(kind, where, message, fix, line, value))


def worst_first(problems: Iterable[Problem]) -> list[Problem]:
    """Returns the errors, then the warnings, then the notes."""
    return sorted(problems, key=lambda problem: ("error", "warning", "note").index(problem.severity))


@contextmanager
def collected(problems: list[Problem]) -> Iterator[None]:
    """Add the problems of a `DataError` raised inside the block to a list instead of raising it."""
    try:
        yield
    except DataError as error:
        problems += error.problems


class ConfigError(BundleMageError):
    """An unknown or impossible setting."""


def config_error(error: ValidationError, values: Mapping[str, Any], known: Mapping[str, Any]) -> ConfigError:
    """Converts an error of pydantic. Returns a ConfigError whose message names every wrong value.

    `values` are the settings as the caller wrote them, by name. The keys of `known` are the valid names.
    """
    lines = []
    for fault in error.errors():
        name, *path = fault["loc"]
        if fault["type"] == "extra_forbidden" and not path:
            close = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            lines.append(f"unknown setting {name!r}; {hint}the settings are: {', '.join(known)}")
            continue
        # Quote the value as the caller wrote it: validators may have replaced a short form by a long one.
        place, value = str(name), values.get(str(name))
        for step in path:
            inside = value if isinstance(value, Mapping) else {}
            names = {str(key).replace(" ", "_"): key for key in inside}
            if step not in names:
                break
            place, value = f"{place}.{step}", inside[names[step]]
        if fault["type"] == "missing":
            lines.append(f"{place!r} is {in_short(value)}; {path[-1]!r} is missing")
            continue
        lines.append(f"{place!r} is {in_short(value)}{fault_in_words(fault)}")
    return ConfigError("; ".join(dict.fromkeys(lines)))


_LIMITS = {
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
}
"""For a kind of error of pydantic: where it holds the limit, and the words for it."""
_TYPES = {"int": "a whole number", "float": "a number"}


def fault_in_words(fault: Mapping[str, Any]) -> str:
    """Returns what is wrong with a value, for one error of pydantic. It follows "… is VALUE"."""
    words = limit_or_type_in_words(fault)
    if words is not None:
        return words
    message = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return f"; {'it ' if message.startswith('should') else ''}{message}"


def limit_or_type_in_words(fault: Mapping[str, Any]) -> str | None:
    """As `fault_in_words` if a number is too large or too small, or if a value is no number; else None."""
    kind: str = fault["type"]
    value: Any = fault["input"]
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        limit: float = fault["ctx"][name]
        text = f"{int(limit):,}" if limit == int(limit) else f"{limit:,}"
        is_percent = name == "le" and limit <= 1 and is_number(value) and 1 < value <= 100
        hint = f"; for {value:g}% write {value / 100:g}" if is_percent else ""
        return f"; it must be {words} {text}{hint}"
    wanted = _TYPES.get(kind.partition("_")[0])
    return None if wanted is None else f", which is not {wanted}{_percent_hint(value)}"


def _percent_hint(value: object) -> str:
    """Returns what to write for a text such as '20%'; nothing for another value."""
    try:
        number = float(value.strip().removesuffix("%")) if isinstance(value, str) and "%" in value else None
    except ValueError:
        number = None
    return "" if number is None else f"; write {number / 100:g} for {number:g}%"


def in_short(value: object) -> str:
    """Returns a value for a message. It is cut if it is long, and a whole number has no decimals."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return _shorten.repr(value)


class UnknownIdError(BundleMageError):
    """An id that the model does not know."""

    def __init__(self, kind: str, unknown: Sequence[str], known: Iterable[str]) -> None:
        first = unknown[0]
        # Fuzzy matching in a large catalogue takes seconds. Only ids with the same first letter are compared.
        names = list(known)
        pool = [name for name in names if name[:1].casefold() == first[:1].casefold()][:5000]
        same_number = [name for name in names if first.isdigit() and name.lstrip("0") == first.lstrip("0")]
        close = same_number[:3] or get_close_matches(first, pool, n=3)
        more = f" (and {len(unknown) - 1:,} more)" if len(unknown) > 1 else ""
        self.hint = f" Did you mean {', '.join(map(repr, close))}?" if close else ""
        super().__init__(
            f"unknown {kind} id {first!r}{more}: not in the data the model was trained on.{self.hint}"
        )
        self.kind = kind
        self.unknown = tuple(unknown)


class OutOfTimeError(BundleMageError):
    """A search found no answer within its time limit."""


class NoModelYetError(BundleMageError):
    """The user interrupted training before there was a model to keep."""


class ArtifactError(BundleMageError):
    """A saved model is missing, cut short, altered, or of another format version."""


class CheckpointError(BundleMageError):
    """A folder cannot be used for checkpoints, or the work in it cannot be continued."""


class DeviceError(BundleMageError):
    """A device that is unknown or not present."""


class UnsupportedError(BundleMageError):
    """The model cannot do this, such as scoring users it was not trained on."""


class StoreError(BundleMageError):
    """The service's database cannot be opened, or a statement failed."""


class UnstorableError(StoreError):
    """The store does not accept a value, such as an id with a control character. Nothing was written."""


class SupersededError(StoreError):
    """The model that was to be replaced is no longer the one in service. Nothing was published."""

    def __init__(self, serving: str | None, instead_of: str | None) -> None:
        super().__init__(
            f"nothing was published: the new model should replace {instead_of or 'no model'}, but "
            f"{serving or 'no model'} serves now. Compare the new model with the one that serves, "
            "and publish again"
        )
        self.serving = serving


class UnknownThingsError(BundleMageError):
    """Items or bundles that are not in the store's catalogue. Nothing was written."""

    def __init__(self, kind: Literal["item", "bundle"], ids: Sequence[str]) -> None:
        listed = ", ".join(map(repr, ids[:5])) + (f" and {len(ids) - 5:,} more" if len(ids) > 5 else "")
        what = f"there is no {kind}" if len(ids) == 1 else f"there are no {kind}s"
        super().__init__(
            f"{what} {listed} in the catalogue, so nothing was done. Add the {kind} first: PUT /v1/{kind}s/ID"
        )
        self.kind = kind
        self.ids = tuple(ids)


def is_number(value: object) -> bool:
    """Returns whether a value is a finite number. True and False are not numbers."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raises a `ConfigError` if the parameter `name` is not a whole number from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number, at least {least}")
    if most is not None and value > most:
        raise ConfigError(f"{name} is {value!r}; it must be at most {most}")


def list_of(what: str, values: Any) -> list[Any]:
    """Returns values as a list. Raises a `ConfigError` if they are a string, a dict, or one value."""
    if isinstance(values, str | bytes):
        raise ConfigError(f"give a list of {what}, not a string: write [{values!r}]")
    try:
        if not isinstance(values, Mapping):
            return list(values)
    except TypeError:
        pass
    raise ConfigError(f"give a list of {what}, not {_shorten.repr(values)}")


def dict_of(name: str, values: Any) -> dict[str, Any]:
    """Returns the parameter `name` as a dict with texts as keys. Raises a `ConfigError` if it is none."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ConfigError(f"{name} is {_shorten.repr(values)}; give a dict: id → value")
    return {str(key): value for key, value in values.items()}


class ExistsError(BundleMageError):
    """An item or bundle that should be new exists already. Nothing was written."""

    def __init__(self, kind: Literal["item", "bundle"], name: str) -> None:
        super().__init__(f"the {kind} {name!r} exists already, and the request does not allow replacing it")


class IdempotencyError(BundleMageError):
    """The same caller has used an idempotency key for a different request. Nothing was written."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the idempotency key {key!r} was used before for other interactions, so nothing was written. "
            "Use a new key for each request. Use a key again only to repeat the same request"
        )
        self.key = key


class MissingExtraError(BundleMageError):
    """An optional dependency is not installed."""

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs an extra: pip install 'bundlemage[{extra}]'")
        self.extra = extra


class RecallError(BundleMageError):
    """An index finds too few of the bundles that an exact search finds."""


class ClusterError(BundleMageError):
    """A cluster cannot be reached or used, or a training process failed."""


class StoppedError(BundleMageError):
    """Long work was stopped, because nobody waits for its result any more."""


class BusyError(BundleMageError):
    """There are too many requests to answer in time, or the same work is under way already."""
