"""Which addresses of images are accepted."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

LONGEST: Final = 2000
# Browsers drop tabs and line breaks inside a URL, and read \ as /.
_NEVER = r'\s\x00-\x20\x7f-\x9f\\"<>`'
_WEB = rf"https?://[^{_NEVER}/?#@:\[\]]+(:[0-9]{{1,5}})?([/?#][^{_NEVER}]*)?"
_OWN = rf"/([^{_NEVER}/][^{_NEVER}]*)?"
IMAGE_PATTERN: Final = rf"^({_WEB}|{_OWN})$"
"""The rule for addresses as a regular expression, for the OpenAPI document."""


def fault_of_image(address: str) -> str | None:
    """Returns what is wrong with the address of an image, in words; None if it is valid.

    Valid are `https://…` and `http://…`, and paths at the address of the service such as `/pictures/7.jpg`.
    Others could run code in a page, or lead elsewhere than they seem to.
    """
    if len(address) > LONGEST:
        return f"has {len(address):,} characters; {LONGEST:,} are allowed"
    half = any("\ud800" <= letter <= "\udfff" for letter in address)  # of a letter, which no UTF-8 can write
    if half or not re.fullmatch(f"{_WEB}|{_OWN}", address):
        return "is not the address of an image; write https://HOST/PATH, or /PATH for a file of the service"
    return None


def scheme_of_image(address: str) -> str | None:
    """Returns `http` or `https`; None for a file of the service."""
    return None if address.startswith("/") else address.partition(":")[0]


def _checked(address: str) -> str:
    fault = fault_of_image(address)
    if fault is not None:
        raise ValueError(fault)
    return address


ImageUrl = Annotated[
    str,
    Field(min_length=1, max_length=LONGEST, json_schema_extra={"pattern": IMAGE_PATTERN}),
    AfterValidator(_checked),
]
