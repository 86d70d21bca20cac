"""BundleMage recommends bundles to users, completes partial bundles and designs new ones.

>>> import bundlemage
>>> shop = bundlemage.read("sample").dataset
>>> model = bundlemage.Recommender(epochs=50).fit(shop)
>>> model.recommend("u0001", k=5)
>>> model.complete("u0001", ["g0001", "g0002"], k=3)
>>> model.design("u0001", budget=40, tags={"at least": {"Horror": 1}}, n=3)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bundlemage.core.filters import Filter as Filter
    from bundlemage.core.history import History as History
    from bundlemage.core.segments import Segment as Segment
    from bundlemage.core.shop import Recommendation as Recommendation
    from bundlemage.core.shop import RecommendedBundle as RecommendedBundle
    from bundlemage.core.shop import RecommendedItem as RecommendedItem
    from bundlemage.data.dataset import BundleDataset as BundleDataset
    from bundlemage.data.dataset import Catalogue as Catalogue
    from bundlemage.data.splits import Split as Split
    from bundlemage.data.splits import SplitPlan as SplitPlan
    from bundlemage.errors import BundleMageError as BundleMageError
    from bundlemage.readers.assemble import read_frames as read_frames
    from bundlemage.readers.load import read as read
    from bundlemage.readers.sql import read_sql as read_sql
    from bundlemage.recommender import Recommender as Recommender
    from bundlemage.sample.generate import sample_shop as sample_shop
    from bundlemage.wire.design import ImpossibleDesignError as ImpossibleDesignError

__version__ = "0.1.0"

# The public names and their modules. A module is imported when its name is first used, so that
# `import bundlemage` is quick and needs no torch.
_MODULES = {
    "BundleDataset": "bundlemage.data.dataset",
    "BundleMageError": "bundlemage.errors",
    "Catalogue": "bundlemage.data.dataset",
    "Filter": "bundlemage.core.filters",
    "History": "bundlemage.core.history",
    "ImpossibleDesignError": "bundlemage.wire.design",
    "Recommendation": "bundlemage.core.shop",
    "RecommendedBundle": "bundlemage.core.shop",
    "RecommendedItem": "bundlemage.core.shop",
    "Recommender": "bundlemage.recommender",
    "Segment": "bundlemage.core.segments",
    "Split": "bundlemage.data.splits",
    "SplitPlan": "bundlemage.data.splits",
    "read": "bundlemage.readers.load",
    "read_frames": "bundlemage.readers.assemble",
    "read_sql": "bundlemage.readers.sql",
    "sample_shop": "bundlemage.sample.generate",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bundlemage' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
