"""Recognises addresses of servers, which may hold a password and are never shown."""


def may_hold_a_password(text: str) -> bool:
    """Whether a location is the address of a server."""
    return "://" in text and not text.startswith(("sqlite:", "duckdb:", "file:"))
