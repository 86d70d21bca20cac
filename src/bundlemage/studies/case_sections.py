"""The case studies of a report, each with the rule that chose it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bundlemage.studies import cases
from bundlemage.studies.document import Block, Cell, Grid, Heading, Section, Text, words
from bundlemage.studies.findings import NOT_RUN, Findings, FoundCase

_NO_CASE = "No case fits the rule: the data may have none, or the model may have learned too little."


def case_section(findings: Findings) -> Section:
    blocks: list[Block] = []
    for found in findings.cases:
        blocks += _case(found)
    return Section("cases", "Case studies", tuple(blocks))


def _case(found: FoundCase) -> list[Block]:
    study = found.study
    if study is None:
        why = "Not run, as no training was asked for" if found.reason == NOT_RUN else found.reason
        return [Heading(found.dataset), Text(f"{why}.", "warning")]
    blocks: list[Block] = [Text(f"{study.model} on {study.dataset}.")]
    blocks += [Text(note, "warning") for note in study.notes]
    if study.taste is not None:
        blocks += _taste(study.taste, study.dataset)
    else:
        blocks += [Text(f"Rule: {cases.TASTE_RULE}", "soft"), Text(_NO_CASE, "warning")]
    blocks.append(Heading(f"{study.dataset}: an unpopular but right item"))
    blocks.append(Text(f"Rule: {cases.UNPOPULAR_RULE}", "soft"))
    blocks += _unpopular(study.unpopular, study.dataset) if study.unpopular else [Text(_NO_CASE, "warning")]
    return [Heading(f"{study.dataset}: one bundle, different users"), *blocks]


def _top(card: cases.ItemCard) -> Cell:
    return Cell(f"top {max(card.top, 0.001):.1%}")


def _items(key: str, cards: Sequence[cases.ItemCard], role: Mapping[str, str]) -> Grid:
    rows = tuple(
        (
            Cell(card.title, code=card.id),
            Cell(role.get(card.id, "in the bundle")),
            Cell(chips=card.tags[:6]),
            _top(card),
        )
        for card in cards
    )
    return Grid(key, ("item", "role", "tags", "popularity"), rows, numbers=False)


def _leanings(taste: Sequence[cases.Leaning]) -> Cell:
    return Cell(chips=tuple(f"{one.tag} {one.share:.0%} (usual {one.usual:.0%})" for one in taste))


def _taste(case: cases.TasteCase, dataset: str) -> list[Block]:
    first = [person.answers[0].id for person in case.people if person.answers]
    outcome = (
        "Each of them is offered something else first."
        if len(set(first)) == len(first)
        else "All of them are offered the same first."
        if len(set(first)) == 1
        else f"They are offered {len(set(first))} different items first."
    )
    rows = []
    for person in case.people:
        best = person.answers[0]
        after = ", then " + words([card.title for card in person.answers[1:]]) if person.answers[1:] else ""
        rows.append(
            (
                Cell(f"user {person.user}", hint=f"owns {person.items} items"),
                _leanings(person.taste),
                Cell(best.title + after, chips=best.tags[:6]),
                _top(best),
            )
        )
    if len(set(first)) > 1 and case.by_taste == 1:
        outcome += " That is for what they own already: without it the model says the same to all of them."
    hidden = {card.id: "hidden" for card in case.hidden}
    return [
        Text(f"Rule: {cases.TASTE_RULE}", "soft"),
        Text(f"The incomplete bundle is {case.bundle}, which {case.users:,} test users have:"),
        _items(f"taste-bundle-{dataset}", (*case.shown, *case.hidden), hidden),
        Text(
            f"{outcome} Of all {case.bundles:,} held-out bundles with two test users or more, the model's "
            f"first item is not the same for all of them in {case.personal:,}, whatever they own."
        ),
        Grid(
            f"taste-{dataset}",
            ("user", "leans on", "BundleMage adds", "popularity"),
            tuple(rows),
            numbers=False,
        ),
    ]


def _unpopular(case: cases.UnpopularCase, dataset: str) -> list[Block]:
    role = {case.right.id: "BundleMage says: right", case.popular.id: "popularity says: wrong"}
    leaning = words(
        [f"{one.tag} ({one.share:.0%} of the items, usually {one.usual:.0%})" for one in case.taste]
    )
    return [
        Text(
            f"User {case.user}{f', who leans on {leaning},' if leaning else ''} and {case.bundle}. "
            f"BundleMage completes it with {case.right.title}, which is right and in the top "
            f"{case.right.top:.1%} of the shop by popularity; popularity says {case.popular.title}, in the "
            f"top {case.popular.top:.1%}, which is wrong. There are {case.alike:,} such cases among "
            f"{case.cases:,}, and {case.opposite:,} the other way about."
        ),
        _items(f"unpopular-{dataset}", (case.right, case.popular, *case.shown), role),
    ]
