"""What the field's public data is, where its files lie, and how they are known to be the right ones.

An address is here only if the file is known to be there, at a commit that cannot change. Sums are those of
copies of the published files. Where no copy was at hand there is no sum, and what is fetched is called
unverified. What is not known to lie anywhere as a plain file is a page to visit.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from bundlemage.errors import ConfigError

_RAW = "https://raw.githubusercontent.com"
_CROSSCBR = f"{_RAW}/mysbupt/CrossCBR/49717496a4be9cda72209645631634d58dd39d23/datasets/Youshu"
_BGCN = f"{_RAW}/cjx0525/BGCN/a81cbd803ac64e8afb071150308cb7250219f3a0/data/NetEase"
_NETEASE_COPY = f"{_RAW}/chengwuzi/UHBR/b35c8204072d0baa851090be73197a9e984495cc/datasets/NetEase"
_STEAM = (
    f"{_RAW}/technoapurva/Steam-Bundle-Recommendation/3dc76fd9990843450f36bf2118b433f8cc765d9b"
    "/data/processed_data"
)


@dataclass(frozen=True)
class PublicFile:
    """A file that can be fetched."""

    url: str
    size: int | None = None
    """Bytes, where a copy was counted: another size is another file."""
    sha256: str | None = None
    about: int | None = None
    """Bytes, where only a listing tells: shown, not checked."""

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class ByHand:
    """Something that is published, but not known as a plain file at an address."""

    what: str
    page: str
    put: tuple[str, ...]
    """The folders where it belongs, below that of the data. None: no reader knows it."""


@dataclass(frozen=True)
class PublicData:
    """One of the field's datasets."""

    name: str
    title: str
    sizes: str
    """As the BundleMage paper's table has them."""
    publication: str
    pages: tuple[str, ...]
    """Where the fetched files were published."""
    folder: str
    """The layout, and the folder below the data's own that holds it."""
    files: tuple[PublicFile, ...]
    by_hand: tuple[ByHand, ...] = ()
    note: str = ""


_AUTHORS = "https://github.com/BundleRecommender/BundleMage"


def _authors_splits(more: str = "") -> ByHand:
    what = f"the splits of the BundleMage paper's authors (train.pkl, valid.pkl, test.pkl, …){more}"
    return ByHand(what, _AUTHORS, ("authors/mat", "authors/gen"))


_YOUSHU = PublicData(
    name="youshu",
    title="Youshu: lists of books",
    sizes="8,039 users, 4,771 bundles, 32,770 items",
    publication=(
        "Chen, Liu, He, Gao, Zheng, Matching User with Item Set: Collaborative Bundle Recommendation with "
        "Deep Attention Network, IJCAI 2019; split as by Ma, He, Zhang, Wang, Chua, CrossCBR, KDD 2022"
    ),
    pages=("https://github.com/mysbupt/CrossCBR",),
    folder="bgcn",
    files=(
        PublicFile(
            f"{_CROSSCBR}/Youshu_data_size.txt",
            16,
            "d0a54cb9c211254cca2652f85f8c2e9c60ac0d3607a360c79d4083ca0f28c6ac",
        ),
        PublicFile(
            f"{_CROSSCBR}/user_bundle_train.txt",
            331_589,
            "7d7c4849e10f55225ea9ca4e875122012a3afadd6ec93202653723e82630d6b5",
        ),
        PublicFile(
            f"{_CROSSCBR}/user_bundle_tune.txt",
            49_984,
            "89b7b5eb746a6b564afadc28443ce618b6cbf0684b4d828fa647548db0760e91",
        ),
        PublicFile(
            f"{_CROSSCBR}/user_bundle_test.txt",
            93_865,
            "0422bdd824871cb67738efe8d7d7a7898a3f0e9111565b217495c122f073aadf",
        ),
        PublicFile(
            f"{_CROSSCBR}/user_item.txt",
            1_458_987,
            "fd785c3293cd639e4b9dbb9b87ac3778106c5605824ed29d5f61105ed04303fb",
        ),
        PublicFile(
            f"{_CROSSCBR}/bundle_item.txt",
            1_844_454,
            "e7945f0579c117bb1051d35558a101337b36431be1c14f029e5d00b5670ab657",
        ),
    ),
    by_hand=(
        _authors_splits(),
        ByHand(
            "the data as first published, in a layout of its own",
            "https://github.com/yliuSYSU/DAM",
            (),
        ),
    ),
)

_STEAM_DATA = PublicData(
    name="steam",
    title="Steam: bundles of games, with titles, tags and prices",
    sizes="29,634 users, 615 bundles, 2,819 items",
    publication=(
        "Pathak, Gupta, McAuley, Generating and Personalizing Bundle Recommendations on Steam, SIGIR 2017"
    ),
    pages=("https://github.com/technoapurva/Steam-Bundle-Recommendation",),
    folder="pathak",
    files=(
        PublicFile(
            f"{_STEAM}/user_bundle_map",
            1_598_578,
            "75a33a343e2b0489c52cc6aa2763a32f00a720c31f986772de2402313b44a29e",
        ),
        PublicFile(
            f"{_STEAM}/bundle_item_map",
            41_878,
            "492dce61e804dfd230d9dcf253815b43f5832f2cf4b99408c9cec525c245a20d",
        ),
        PublicFile(
            f"{_STEAM}/all_items",
            2_899_969,
            "064b552a48a19688f86343fbbe89d83360a509174a1a9b74b05bcc5de07803e9",
        ),
        PublicFile(
            f"{_STEAM}/item_id_lookup",
            40_777,
            "981fdd1b2f5580ef998f6a7ab9504f19858a1432529aa4af97667a361e700320",
        ),
        PublicFile(
            f"{_STEAM}/item_name_map",
            128_140,
            "e5e3ed744f5a91a273ac44eba9de3789cfbcc7a0dc079086da11bd201cd4b993",
        ),
        PublicFile(
            f"{_STEAM}/item_price_map",
            51_930,
            "5f063823ca1de835317cbbcfc08bf9732eb64f8f7c0323fd4bec4046eeca8380",
        ),
        PublicFile(
            f"{_STEAM}/item_set",
            18_658,
            "e95de9fb65da13a5c8fd978eeed2428dd2a116b37ca133b87c5ad1755cd9c412",
        ),
        PublicFile(
            f"{_STEAM}/item_time_map",
            30_431,
            "520135a0d7d2e9c5ae8507d72234bba59becdcacd513dcf224fe19c3053bfd75",
        ),
        PublicFile(
            f"{_STEAM}/bundle_discount_map",
            7_230,
            "c73f243a01a896b781d72cf0769b0dc601a0d7be9d0749704e4dd3db28f3dbb3",
        ),
        PublicFile(
            f"{_STEAM}/bundle_diversity_map",
            33_515,
            "51ff4508982acda23b072f384e5e4bc829fa1681e922f1310d7ed9d9d5a64243",
        ),
        PublicFile(
            f"{_STEAM}/bundle_final_price_map",
            7_726,
            "ac3a17849a7f34c8696532ff04532748a4f26967f27539b601e3c48c7b239902",
        ),
        PublicFile(
            f"{_STEAM}/bundle_price_map",
            7_822,
            "f3b8c6475bbbcc71609e8325e547a7e84549a96bdec005e1c104dd47ac569074",
        ),
    ),
    by_hand=(_authors_splits("; whether Steam's user_item.pkl is among them is not known"),),
    note="no user-item matrix is among the files: the data reads as steam-partial",
)

_NETEASE = PublicData(
    name="netease",
    title="NetEase: playlists of songs",
    sizes="18,528 users, 22,864 bundles, 123,628 items",
    publication=(
        "Cao, Nie, He, Wei, Zhu, Chua, Embedding Factorization Models for Jointly Recommending Items and "
        "User Generated Lists, SIGIR 2017; split by Chang, Gao, He, Jin, Li, BGCN, SIGIR 2020"
    ),
    pages=("https://github.com/cjx0525/BGCN", "https://github.com/chengwuzi/UHBR"),
    folder="bgcn",
    files=(
        PublicFile(f"{_BGCN}/NetEase_data_size.txt", about=20),
        PublicFile(f"{_BGCN}/user_bundle_train.txt", about=2_374_150),
        PublicFile(f"{_BGCN}/user_bundle_tune.txt", about=303_754),
        PublicFile(f"{_BGCN}/user_bundle_test.txt", about=616_647),
        PublicFile(f"{_NETEASE_COPY}/user_item.txt", about=12_974_109),
        PublicFile(f"{_NETEASE_COPY}/bundle_item.txt", about=20_671_430),
    ),
    by_hand=(
        _authors_splits(),
        ByHand(
            "user_item.txt and bundle_item.txt from BGCN's own repository, if you trust no copy",
            "https://github.com/cjx0525/BGCN",
            ("bgcn",),
        ),
    ),
    note=(
        "user_item.txt and bundle_item.txt come from a copy in a third party's repository; the paper's table "
        "has 1,128,065 user-item and 1,778,838 bundle-item pairs: compare them with 'bundlemage data stats'"
    ),
)

PUBLIC_DATA = {data.name: data for data in (_YOUSHU, _STEAM_DATA, _NETEASE)}


def public_data(name: str) -> PublicData:
    if name not in PUBLIC_DATA:
        known = ", ".join(PUBLIC_DATA)
        raise ConfigError(f"no public data is called {name!r}; there is: {known} ('list' describes them)")
    return PUBLIC_DATA[name]


def hosts(data: PublicData) -> frozenset[str]:
    """The only machines that the files of this data may come from."""
    return frozenset(urlsplit(file.url).hostname or "" for file in data.files)
