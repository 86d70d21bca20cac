"""Tuning on this machine, one trial after another."""

from __future__ import annotations

from bundlemage.training.devices import resolve_device
from bundlemage.tuning.session import Session
from bundlemage.tuning.study import Progress, Search, Study
from bundlemage.tuning.trial import judge


def tune(search: Search, progress: Progress) -> Study:
    """Make the trials that are missing. With the same seed they are the same, cut off and resumed or not.

    Ctrl-C ends early and keeps what is there.
    """
    resolve_device(str({**search.start, **search.settings}.get("device", "auto")))
    session = Session(search, progress)
    try:
        for number in session.numbers():
            chosen = session.adviser.ask(number)
            judged = judge(
                search.model,
                session.settings(chosen),
                session.split,
                lambda epoch, value, number=number: session.stops(number, epoch, value),  # type: ignore[misc]
            )
            session.keep(number, chosen, judged)
    except KeyboardInterrupt:
        return session.study(interrupted=True)
    return session.study()
