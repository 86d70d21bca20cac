"""Every number that the paper prints, as data, and the published figures of full ranking beside it.

Jeon, Jang, Kim and Kang, Accurate Bundle Matching and Generation via Multitask Learning with Partially
Shared Parameters, PLoS ONE 2023. Tables go by the paper's own labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DATASETS = ("youshu", "netease", "steam")
"""The columns of every table, in the paper's order."""
METRICS = ("ndcg@5", "ndcg@10", "ndcg@20", "recall@5", "recall@10", "recall@20")
NDCG = METRICS[:3]

Figures = tuple[float, ...]


@dataclass(frozen=True)
class PaperRow:
    """A row of one of the paper's tables. An empty column is one that the paper has no number for."""

    title: str
    """The model as the paper calls it."""
    contender: str
    """What is run here for it: a recipe, or a model."""
    youshu: Figures
    netease: Figures
    steam: Figures
    remark: str = ""
    """What the paper says where it has no number."""

    def figures(self, dataset: str) -> dict[str, float]:
        """Metric → figure; empty where the paper has none. Three figures are nDCG, six Recall too."""
        printed: Figures = getattr(self, dataset) if dataset in DATASETS else ()
        return dict(zip(METRICS, printed, strict=False))


# Table "bundle_matching"
MATCHING = (
    PaperRow(
        "POP",
        "item-popularity",
        (0.0264, 0.0451, 0.0681, 0.0490, 0.1062, 0.1982),
        (0.0315, 0.0479, 0.0723, 0.0528, 0.1040, 0.2017),
        (0.0207, 0.0531, 0.0596, 0.0407, 0.1012, 0.1312),
    ),
    PaperRow(
        "BPR",
        "bpr",
        (0.3828, 0.4196, 0.4439, 0.5172, 0.6306, 0.7260),
        (0.2796, 0.3255, 0.3647, 0.3979, 0.5402, 0.6952),
        (0.8407, 0.8450, 0.8462, 0.9791, 0.9921, 0.9969),
    ),
    PaperRow(
        "NCF",
        "ncf",
        (0.4651, 0.5047, 0.5269, 0.6152, 0.7365, 0.8240),
        (0.3142, 0.3605, 0.3976, 0.4448, 0.5878, 0.7347),
        (0.8497, 0.8535, 0.8545, 0.9830, 0.9942, 0.9984),
    ),
    PaperRow(
        "VAE-CF",
        "vae-cf",
        (0.4788, 0.5150, 0.5394, 0.6323, 0.7439, 0.8402),
        (0.4026, 0.4466, 0.4786, 0.5571, 0.6919, 0.8139),
        (0.9182, 0.9212, 0.9219, 0.9874, 0.9965, 0.9990),
    ),
    PaperRow(
        "BR",
        "br",
        (0.4319, 0.4710, 0.4969, 0.5853, 0.7058, 0.8075),
        (0.2764, 0.3248, 0.3659, 0.3977, 0.5476, 0.7103),
        (0.8425, 0.8465, 0.8476, 0.9824, 0.9946, 0.9988),
    ),
    PaperRow(
        "EFM",
        "efm",
        (0.4541, 0.4941, 0.5189, 0.6058, 0.7289, 0.8263),
        (0.2918, 0.3406, 0.3814, 0.4162, 0.5676, 0.7289),
        (0.8472, 0.8513, 0.8522, 0.9823, 0.9948, 0.9984),
    ),
    PaperRow(
        "DAM",
        "dam",
        (0.4520, 0.4937, 0.5203, 0.6052, 0.7328, 0.8374),
        (0.2893, 0.3362, 0.3772, 0.4117, 0.5568, 0.7198),
        (0.8509, 0.8549, 0.8564, 0.9815, 0.9939, 0.9995),
    ),
    PaperRow(
        "BGCN",
        "bgcn",
        (0.3811, 0.4231, 0.4512, 0.5420, 0.6713, 0.7821),
        (0.3256, 0.3692, 0.4062, 0.4513, 0.5861, 0.7324),
        (0.9001, 0.9035, 0.9043, 0.9851, 0.9952, 0.9983),
    ),
    PaperRow(
        "GRAM-SMOT",
        "gram-smot",
        (0.5018, 0.5405, 0.5628, 0.6568, 0.7750, 0.8627),
        (0.4051, 0.4501, 0.4823, 0.5571, 0.6961, 0.8230),
        (0.9225, 0.9253, 0.9259, 0.9878, 0.9963, 0.9985),
    ),
    PaperRow(
        "BundleMage",
        "bundlemage-paper",
        (0.5185, 0.5533, 0.5740, 0.6693, 0.7770, 0.8584),
        (0.4281, 0.4724, 0.5039, 0.5762, 0.7132, 0.8373),
        (0.9838, 0.9849, 0.9852, 0.9947, 0.9978, 0.9990),
    ),
)

# Table "bundle_generation"
GENERATION = (
    PaperRow(
        "Random",
        "random",
        (0.0078, 0.0135, 0.0221, 0.0081, 0.0185, 0.0390),
        (0.0100, 0.0100, 0.0155, 0.0051, 0.0101, 0.0201),
        (0.0266, 0.0425, 0.0669, 0.0453, 0.0953, 0.1930),
    ),
    PaperRow(
        "POP",
        "popularity",
        (0.2078, 0.2525, 0.3179, 0.1935, 0.2843, 0.4354),
        (0.1266, 0.1110, 0.1430, 0.0623, 0.1031, 0.1616),
        (0.7698, 0.7765, 0.7770, 0.9673, 0.9871, 0.9891),
    ),
    PaperRow(
        "BR",
        "br",
        (0.0082, 0.0134, 0.0251, 0.0080, 0.0180, 0.0460),
        (0.0104, 0.0104, 0.0159, 0.0051, 0.0103, 0.0203),
        (0.0322, 0.0481, 0.0729, 0.0549, 0.1044, 0.2037),
    ),
    PaperRow(
        "GRAM-SMOT",
        "gram-smot",
        (0.0114, 0.0175, 0.0272, 0.0029, 0.0083, 0.0120),
        (),
        (0.0963, 0.1222, 0.1412, 0.0733, 0.1556, 0.2734),
        remark="the paper stopped it on Netease after 7 days (o.o.t)",
    ),
    PaperRow(
        "BundleMage",
        "bundlemage-paper",
        (0.4592, 0.5634, 0.6187, 0.4018, 0.5942, 0.7217),
        (0.7944, 0.6974, 0.7842, 0.3891, 0.6448, 0.7993),
        (0.9650, 0.9657, 0.9671, 0.9660, 0.9682, 0.9738),
    ),
)

# Table "ablation_matching": nDCG alone
ABLATION_MATCHING = (
    PaperRow(
        "BundleMage-Avg",
        "ablation-avg",
        (0.5034, 0.5404, 0.5622),
        (0.4219, 0.4700, 0.5012),
        (0.9721, 0.9737, 0.9742),
    ),
    PaperRow(
        "BundleMage-Sep",
        "ablation-sep",
        (0.4880, 0.5239, 0.5457),
        (0.4086, 0.4558, 0.4881),
        (0.9612, 0.9633, 0.9638),
    ),
    PaperRow(
        "BundleMage-Sha",
        "ablation-sha",
        (0.3645, 0.4041, 0.4324),
        (0.3359, 0.3796, 0.4149),
        (0.9802, 0.9812, 0.9816),
    ),
    PaperRow(
        "BundleMage-Lgen",
        "ablation-no-generation",
        (0.4894, 0.5283, 0.5507),
        (0.4108, 0.4567, 0.4896),
        (0.9797, 0.9811, 0.9816),
    ),
    PaperRow(
        "BundleMage",
        "bundlemage-paper",
        (0.5185, 0.5533, 0.5740),
        (0.4281, 0.4724, 0.5039),
        (0.9838, 0.9849, 0.9852),
    ),
)

# Table "ablation_generation": nDCG alone
ABLATION_GENERATION = (
    PaperRow(
        "BundleMage-Avg",
        "ablation-avg",
        (0.4328, 0.5181, 0.5815),
        (0.7826, 0.6911, 0.7817),
        (0.9642, 0.9643, 0.9648),
    ),
    PaperRow(
        "BundleMage-Sep",
        "ablation-sep",
        (0.4211, 0.5100, 0.5829),
        (0.7831, 0.6866, 0.7743),
        (0.9645, 0.9648, 0.9661),
    ),
    PaperRow(
        "BundleMage-Sha",
        "ablation-sha",
        (0.4304, 0.4997, 0.5686),
        (0.7832, 0.6904, 0.7756),
        (0.9643, 0.9649, 0.9666),
    ),
    PaperRow(
        "BundleMage-Lmat",
        "ablation-no-matching",
        (0.3534, 0.4324, 0.4922),
        (0.7469, 0.6521, 0.7468),
        (0.8199, 0.8201, 0.8202),
    ),
    PaperRow(
        "BundleMage",
        "bundlemage-paper",
        (0.4592, 0.5634, 0.6187),
        (0.7944, 0.6974, 0.7842),
        (0.9650, 0.9657, 0.9671),
    ),
)

# Table "datasets"; a density is a fraction, as `bundlemage.data.statistics` gives it
STATISTICS: Mapping[str, Mapping[str, int | float]] = {
    "youshu": {
        "users": 8_039,
        "bundles": 4_771,
        "items": 32_770,
        "user_bundle_pairs": 51_377,
        "user_bundle_density": 0.0013,
        "user_item_pairs": 138_515,
        "user_item_density": 0.0005,
        "bundle_item_pairs": 176_667,
        "bundle_item_density": 0.0011,
        "items_per_bundle": 37.03,
    },
    "netease": {
        "users": 18_528,
        "bundles": 22_864,
        "items": 123_628,
        "user_bundle_pairs": 302_303,
        "user_bundle_density": 0.0007,
        "user_item_pairs": 1_128_065,
        "user_item_density": 0.0005,
        "bundle_item_pairs": 1_778_838,
        "bundle_item_density": 0.0006,
        "items_per_bundle": 77.80,
    },
    "steam": {
        "users": 29_634,
        "bundles": 615,
        "items": 2_819,
        "user_bundle_pairs": 87_565,
        "user_bundle_density": 0.0048,
        "user_item_pairs": 902_967,
        "user_item_density": 0.0108,
        "bundle_item_pairs": 3_541,
        "bundle_item_density": 0.0020,
        "items_per_bundle": 5.76,
    },
}

# Section "Performance on Bundle Generation"
POPULARITY_BIAS: Mapping[str, float] = {"youshu": 0.148, "netease": 0.2636, "steam": 0.0142}

# The notes under table "datasets", and the end of the introduction
SOURCES: Mapping[str, str] = {
    "youshu": "https://github.com/yliuSYSU/DAM",
    "netease": "https://github.com/cjx0525/BGCN",
    "steam": "https://github.com/technoapurva/Steam-Bundle-Recommendation",
}
AUTHORS_FILES = "https://github.com/BundleRecommender/BundleMage"


@dataclass(frozen=True)
class Published:
    """Figures of full ranking from other publications; the paper has none."""

    title: str
    contender: str | None
    """What is run here under that name, where it is."""
    figures: Mapping[str, float]
    source: str


_FULL = ("recall@20", "ndcg@20", "recall@40", "ndcg@40")
FULL_METRICS = _FULL
_SURVEY = "survey arXiv 2411.00341"


def _full(*figures: float) -> dict[str, float]:
    return dict(zip(_FULL, figures, strict=False))


FULL_RANKING: Mapping[str, tuple[Published, ...]] = {
    "youshu": (
        Published("BGCN", "bgcn", _full(0.2390, 0.1392, 0.3425, 0.1673), _SURVEY),
        Published("CrossCBR", "crosscbr", _full(0.2786, 0.1660, 0.3794, 0.1938), _SURVEY),
        Published("MultiCBR", "multicbr", _full(0.2847, 0.1680, 0.3909, 0.1966), "re-runs by others"),
        Published("BundleGT", "bundlegt", _full(0.2907, 0.1720, 0.3951, 0.2006), _SURVEY),
        Published("the best seen anywhere", None, _full(0.2920, 0.1759), "a 2026 draft"),
    )
}
