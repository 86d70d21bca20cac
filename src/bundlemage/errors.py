"""One family of exceptions. A message says what was found, where, what is expected, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal


class BundleMageError(Exception):
    """Anything the caller can mend. The command line prints it and exits with 2."""

    def __reduce__(self) -> tuple[object, ...]:
        """As it is, from one process to another: an error is not worked out anew from its message."""
        return _error, (type(self), self.args, self.__dict__)


def _error(
    kind: type[BundleMageError], args: tuple[object, ...], state: dict[str, object]
) -> BundleMageError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


@dataclass(frozen=True)
class Problem:
    """One kind of fault in one place, with the first instance spelled out and the rest counted."""

    kind: str
    """A stable slug, e.g. `missing-file`, for programs and tests."""
    where: str
    """The file, table or frame, as the user named it."""
    message: str
    """What was found and what is expected."""
    fix: str
    """What to do about it."""
    line: int | None = None
    """The 1-based line in a text file (or row in a table) of the first instance."""
    value: str | None = None
    """The offending value of the first instance."""
    more: int = 0
    """How many more instances of the same kind there are in the same place."""
    severity: Literal["error", "warning"] = "error"
    """An error stops loading. A warning loads, but `data check` still refuses it."""

    def __str__(self) -> str:
        place = self.where if self.line is None else f"{self.where}:{self.line}"
        more = f" ({self.more:,} more like this)" if self.more else ""
        return f"{place}: {self.message}{more}. {self.fix}"


class DataError(BundleMageError):
    """The data cannot be used. Carries every problem found, not only the first."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def of(
        cls, kind: str, where: str, message: str, fix: str, line: int | None = None, value: str | None = None
    ) -> DataError:
        """The error of a single problem."""
        return cls(Problem(kind, where, message, fix, line, value))


@contextmanager
def collected(problems: list[Problem]) -> Iterator[None]:
    """Add the problems of a `DataError` raised inside the block to a list instead of raising it."""
    try:
        yield
    except DataError as error:
        problems += error.problems


class ConfigError(BundleMageError):
    """An unknown or impossible setting."""


class UnknownIdError(BundleMageError):
    """An id that is not in the vocabulary."""

    def __init__(self, kind: str, unknown: Sequence[str], known: Iterable[str]) -> None:
        first = unknown[0]
        # Fuzzy matching a large catalogue takes seconds; a prefix pool keeps the answer immediate.
        pool = [name for name in known if name[:1].casefold() == first[:1].casefold()][:5000]
        close = get_close_matches(first, pool, n=3)
        more = f" (and {len(unknown) - 1:,} more)" if len(unknown) > 1 else ""
        hint = f" Did you mean {', '.join(map(repr, close))}?" if close else ""
        super().__init__(
            f"unknown {kind} id {first!r}{more}: not in the data the model was trained on.{hint}"
        )
        self.kind = kind
        self.unknown = tuple(unknown)


class OutOfTimeError(BundleMageError):
    """A search ended without an answer in the time that it was given."""


class NoModelYetError(BundleMageError):
    """Training was interrupted by the user before there was anything to keep."""


class ArtifactError(BundleMageError):
    """A saved model is missing, cut short, altered, or of another format version."""


class CheckpointError(BundleMageError):
    """A folder cannot be used for long work, or the work in it cannot be continued."""


class DeviceError(BundleMageError):
    """A device that is unknown or not present."""


class UnsupportedError(BundleMageError):
    """A thing this model does not do, such as scoring users it was not trained on."""


class StoreError(BundleMageError):
    """The service's database cannot be opened, or does not do what it is asked."""


class UnstorableError(StoreError):
    """A value that the store does not take, such as an id with a control character. Nothing was written."""


class SupersededError(StoreError):
    """A model was to take the place of one that serves no longer. Nothing was published."""

    def __init__(self, serving: str | None, instead_of: str) -> None:
        super().__init__(
            f"nothing was published: the place of the model {instead_of} was to be taken, and by now "
            f"{serving} serves. Compare with that one, and publish again"
        )
        self.serving = serving


class UnknownThingsError(BundleMageError):
    """Items or bundles that are not in the store's catalogue. Nothing was written."""

    def __init__(self, kind: Literal["item", "bundle"], ids: Sequence[str]) -> None:
        listed = ", ".join(map(repr, ids[:5])) + (f" and {len(ids) - 5:,} more" if len(ids) > 5 else "")
        what = f"there is no {kind}" if len(ids) == 1 else f"there are no {kind}s"
        super().__init__(
            f"{what} {listed} in the catalogue, so nothing was done. Put the {kind} there first: "
            f"PUT /v1/{kind}s/ID"
        )
        self.kind = kind
        self.ids = tuple(ids)


class ExistsError(BundleMageError):
    """Something that was to be new is there already. Nothing was written."""

    def __init__(self, kind: Literal["item", "bundle"], name: str) -> None:
        super().__init__(f"there is a {kind} {name!r} already, and it was asked not to replace one")


class IdempotencyError(BundleMageError):
    """An idempotency key was used before, by the same caller, for something else. Nothing was written."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the idempotency key {key!r} was used before for other interactions, so nothing was written. "
            "Make a new key for each request, and send an old one only to repeat the same request"
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
    """A cluster cannot be reached, or has lost more than it can replace."""


class BusyError(BundleMageError):
    """More is asked for than can be answered in time, or the same is under way already."""
