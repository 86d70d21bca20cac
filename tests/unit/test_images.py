"""Which addresses of images are accepted."""

from __future__ import annotations

import re

import pytest

from bundlemage.wire.images import IMAGE_PATTERN, fault_of_image


@pytest.mark.parametrize(
    "address",
    [
        "https://pictures.example/a.jpg?width=200#top",
        "http://pictures.example:8080",
        "https://bücher.example/ä.png",
        "/pictures/7.jpg",
        "/",
    ],
)
def test_addresses_on_the_web_and_of_the_service_are_accepted(address: str) -> None:
    assert fault_of_image(address) is None
    assert re.search(IMAGE_PATTERN, address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "javascript:alert(1)",
        "JavaScript:alert(1)",
        "data:image/svg+xml;base64,PHN2Zz4=",
        "file:///etc/passwd",
        "ftp://pictures.example/a.jpg",
        "//pictures.example/a.jpg",
        "/\\pictures.example/a.jpg",
        "\\\\pictures.example/a.jpg",
        "/\t/pictures.example/a.jpg",
        "https://",
        "https:///a.jpg",
        "https:/a.jpg",
        "https://user:password@pictures.example/a.jpg",
        "https://pictures.example/a b.jpg",
        'https://pictures.example/"onerror=alert(1)',
        "https://pictures.example/a.jpg\n",
        "https://pictures.example/\ud800.jpg",
        " https://pictures.example/a.jpg",
        "pictures/a.jpg",
        "blob:https://pictures.example/1",
        "/a\u2028.jpg",
        "/" + "a" * 2000,
    ],
)
def test_everything_else_is_refused(address: str) -> None:
    assert fault_of_image(address) is not None
    if len(address) <= 2000 and address.isprintable():  # the length and half letters have rules of their own
        assert not re.fullmatch(IMAGE_PATTERN[1:-1], address)
