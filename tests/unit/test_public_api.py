"""What `import bundlemage` offers, and what it does not bring along."""

from __future__ import annotations

import subprocess
import sys

import pytest

import bundlemage


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "use",
    [
        "pass",
        "dir(bundlemage)",
        "bundlemage.BundleDataset, bundlemage.SplitPlan, bundlemage.BundleMageError, bundlemage.read",
        "bundlemage.SplitPlan().divide(bundlemage.sample_shop(users=9, items=20, bundles=4, items_per_user=3,"
        " bundles_per_user=2, items_per_bundle=3).dataset)",
    ],
    ids=["import", "dir", "names-of-the-data", "reading-and-splitting"],
)
def test_torch_stays_out(use: str) -> None:
    assert python(f"import bundlemage, sys; {use}; print('torch' in sys.modules)") == "False"


def test_importing_brings_none_of_the_heavy_packages() -> None:
    heavy = "{'torch', 'pyarrow', 'scipy', 'numpy', 'pandas', 'sqlalchemy'}"
    assert python(f"import bundlemage, sys; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_the_recommender_does_bring_torch() -> None:
    """So that the tests above can fail."""
    assert python("import bundlemage, sys; bundlemage.Recommender; print('torch' in sys.modules)") == "True"


@pytest.mark.parametrize("name", bundlemage.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(bundlemage, name)
    assert value.__name__ == name
    assert value.__module__.startswith("bundlemage.")


def test_the_names_of_the_readme_are_public() -> None:
    assert {"Recommender", "History", "Recommendation", "read", "SplitPlan"} <= set(bundlemage.__all__)


def test_dir_lists_the_public_names_and_the_version() -> None:
    assert set(bundlemage.__all__) | {"__version__"} <= set(dir(bundlemage))
    assert [name for name in dir(bundlemage) if not name.startswith("_")] == sorted(bundlemage.__all__)


def test_a_star_import_gives_the_public_names() -> None:
    printed = python("from bundlemage import *; print(sorted(n for n in dir() if not n.startswith('_')))")
    assert printed == str(sorted(bundlemage.__all__))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'recomender'"):
        _ = bundlemage.recomender
    assert not hasattr(bundlemage, "torch")


def test_every_error_is_of_one_family() -> None:
    from bundlemage import errors

    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    raised = [value for value in classes if issubclass(value, Exception)]
    assert len(raised) > 5
    assert all(issubclass(value, bundlemage.BundleMageError) for value in raised)
