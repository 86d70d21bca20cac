"""The sentences of answers in other languages: one gettext catalogue for each language.

The catalogue of a language is LANGUAGE/LC_MESSAGES/messages.po, in this folder or in the folder that the
environment variable BUNDLEMAGE_MESSAGES names. The latter has precedence. The texts in the code are English.
Catalogues are compiled in memory when they are first used, so there are no .mo files.
"""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from functools import cache
from gettext import GNUTranslations, NullTranslations
from io import BytesIO
from pathlib import Path

from bundlemage.errors import ConfigError

FOLDER = Path(__file__).parent
ENGLISH = "en"
VARIABLE = "BUNDLEMAGE_MESSAGES"
_CATALOGUE = Path("LC_MESSAGES", "messages.po")


def _folders() -> tuple[Path, ...]:
    """The folders with catalogues. The later ones have precedence. Raises `ConfigError`."""
    own = os.environ.get(VARIABLE)
    if not own:
        return (FOLDER,)
    if not Path(own).is_dir():
        raise ConfigError(f"{VARIABLE} is {own!r}, which is not a folder; it should hold de/{_CATALOGUE}")
    return FOLDER, Path(own)


def languages() -> list[str]:
    """Returns the languages that have a catalogue, and English."""
    found = (file.parts[-3] for folder in _folders() for file in folder.glob(f"*/{_CATALOGUE}"))
    return sorted({ENGLISH, *found})


def language_of(name: str) -> str:
    """Returns the language for a name such as `de`, `de_AT` or `de-AT`. Raises `ConfigError`."""
    if not isinstance(name, str):
        raise ConfigError(f"the language is {name!r}; expected a name such as 'de'")
    known = {each.lower(): each for each in languages()}
    wanted = name.replace("-", "_").lower()
    while wanted:
        if wanted in known:
            return known[wanted]
        wanted = wanted.rpartition("_")[0]
    listed = ", ".join(known.values())
    raise ConfigError(f"there are no sentences in the language {name!r}; the languages are: {listed}")


def language_of_shop(locale: str) -> str:
    """Returns the language of a shop's locale, or English if it has no catalogue."""
    try:
        return language_of(locale)
    except ConfigError:
        return ENGLISH


def catalogue(language: str) -> NullTranslations:
    """Returns the translations into a language of `languages`. Raises `ConfigError` for a wrong file."""
    return _compiled(language, _folders())


def check_catalogues() -> None:
    """Reads all catalogues. Raises `ConfigError` for a wrong file."""
    for each in languages():
        catalogue(each)


@cache
def _compiled(language: str, folders: tuple[Path, ...]) -> NullTranslations:
    translations = NullTranslations()
    for folder in folders:
        file = folder / language / _CATALOGUE
        if file.is_file():
            better = _read(file, language)
            better.add_fallback(translations)
            translations = better
    return translations


def _read(file: Path, language: str) -> GNUTranslations:
    # Babel takes a moment to import, and most commands write no sentences.
    from babel import Locale, UnknownLocaleError
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import PoFileError, read_po

    try:
        Locale.parse(language)
    except (UnknownLocaleError, ValueError):
        raise ConfigError(
            f"{file} is in a folder {language!r}, which is no language: name it by a language such as fr, or "
            "a language and a region such as pt_BR"
        ) from None
    try:
        text = BytesIO(file.read_bytes().removeprefix(BOM_UTF8))
        messages = read_po(text, locale=language, abort_invalid=True)
        for message, faults in messages.check():
            raise ConfigError(f"{file}, line {message.lineno}: {faults[0]}")
        compiled = BytesIO()
        write_mo(compiled, messages)
        compiled.seek(0)
        return GNUTranslations(compiled)
    except (PoFileError, ValueError, LookupError, OSError) as error:
        raise ConfigError(f"{file} cannot be read as a catalogue of messages: {error}") from None
