"""Figures: well-formed, described, of colours that follow the page, the same for the same numbers."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from bundlemage.studies import figures
from bundlemage.studies.figures import COLOURS, Figure, Plotted

SVG = "{http://www.w3.org/2000/svg}"


def bars() -> Figure:
    panels = {
        "Matching": [
            Plotted("BundleMage", "ours", 0.51, 0.002, 0.5185),
            Plotted("<DAM & co>", "paper", None, None, 0.452),
            Plotted("EASE", "beyond", 0.49),
        ],
        "Generation": [Plotted("BundleMage", "ours", 0.48, 0.003, 0.4592)],
    }
    return figures.accuracy_bars("ndcg", "nDCG@5 on Youshu", panels)


def similarity() -> Figure:
    return figures.similarity("similarity", "Likeness", np.array([0.1, np.nan, 0.5, 0.9, 0.3]))


def curves() -> Figure:
    values = [step / 200 for step in range(1, 101)]
    lines = [
        Plotted("BundleMage", "ours", curve=values, best_epoch=100),
        Plotted("BPR", "paper", curve=values, best_epoch=50),
    ]
    return figures.training_curves("curves", "Training", lines)


def times() -> Figure:
    points = [Plotted("BundleMage", "ours", 0.5, seconds=100.0), Plotted("EASE", "beyond", 0.49, seconds=1.0)]
    return figures.time_and_accuracy("time", "Time", [*points, Plotted("BPR", "paper", 0.5, seconds=101.0)])


EVERY = pytest.mark.parametrize("make", [bars, similarity, curves, times])


@EVERY
def test_a_figure_is_sound_and_described(make: object) -> None:
    figure = make()  # type: ignore[operator]
    for text in (figure.inline, figure.file):
        root = ElementTree.fromstring(text)
        assert root.get("role") == "img"
        title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
        assert title is not None
        assert title.text == figure.title
        assert description is not None
        assert description.text == figure.alt
        assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert root.findall(f".//{SVG}text"), "text stays text"
    assert figure.png.startswith(b"\x89PNG")


@EVERY
def test_colours_follow_the_page(make: object) -> None:
    figure = make()  # type: ignore[operator]
    assert "var(--fig-ink)" in figure.inline
    used = set(re.findall(r"var\(--fig-(\w+)\)", figure.inline))
    assert used <= set(COLOURS)
    assert "<style" not in figure.inline or "--fig-ink:" not in figure.inline, "the page has the colours"
    assert "prefers-color-scheme" in figure.file
    for light, _ in COLOURS.values():
        assert light not in figure.inline, f"{light} would not turn dark"


def test_ids_of_two_figures_never_meet() -> None:
    ids = [set(re.findall(r'\bid="([^"]+)"', figure.inline)) for figure in (bars(), curves(), similarity())]
    assert all(ids)
    assert not ids[0] & ids[1]
    assert not ids[1] & ids[2]
    for figure in (bars(), curves()):
        known = set(re.findall(r'\bid="([^"]+)"', figure.inline))
        assert set(re.findall(r"url\(#([^)]+)\)", figure.inline)) <= known


def test_the_same_numbers_make_the_same_files() -> None:
    assert bars() == bars()


def test_bars_say_what_they_show() -> None:
    figure = bars()
    assert "BundleMage 0.5100" in figure.alt
    assert "not run" in figure.inline
    assert "&lt;DAM &amp; co&gt;" in figure.inline


def test_similarity_leaves_out_users_without_an_answer() -> None:
    assert "4 users" in similarity().alt
    assert "median 0.400" in similarity().alt


def test_similarity_of_nobody_is_drawn_too() -> None:
    assert "0 users" in figures.similarity("similarity", "Likeness", np.array([np.nan])).alt


def test_both_grounds_have_every_colour() -> None:
    light, dark = figures.colour_variables(), figures.colour_variables(dark=True)
    assert light.count("--fig-") == dark.count("--fig-") == len(COLOURS)
    assert len({pair[0] for pair in COLOURS.values()}) == len(COLOURS), "one colour, one meaning"
