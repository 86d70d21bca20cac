"""Where the published data sets are, for the tests that measure against them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE_THE_REPOSITORY = Path(__file__).resolve().parents[2] / "shared" / "datasets"


def real_data(relative: str) -> Path:
    """A folder of published data such as `youshu/bgcn`; skips the test where it is absent."""
    root = Path(os.environ.get("BUNDLEMAGE_DATA") or _BESIDE_THE_REPOSITORY)
    folder = root / relative
    if not folder.is_dir():
        pytest.skip(
            f"published data {relative} is not in {root}: set BUNDLEMAGE_DATA to the folder that holds it"
        )
    return folder
