"""The words of the sample shop: genres, names of series and studios, titles of games and bundles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bundlemage.sample.draws import Random, pick, shuffled


@dataclass(frozen=True)
class Genre:
    """A genre and the words that make a title sound like it."""

    name: str
    nouns: tuple[str, ...]
    """End a title: Starfall *Tactics*."""
    places: tuple[str, ...]
    """Begin one: *Harbor* of Embers."""
    moods: tuple[str, ...]
    """Begin the title of a bundle: *Cozy* Farming Pack."""


def _words(*lists: str) -> tuple[str, ...]:
    return tuple(word for words in lists for word in words.split(","))


def _genre(name: str, nouns: str, places: str, moods: str) -> Genre:
    return Genre(name, _words(nouns), _words(places), _words(moods))


GENRES = (
    _genre(
        "Strategy",
        "Tactics,Command,Dominion,Warlords,Conquest,Gambit,Frontiers,Sovereigns",
        "Throne,Citadel,Banner,Empire,Council,March",
        "Grand,Turn-by-Turn,Iron-Willed,Masterful",
    ),
    _genre(
        "Role-Playing",
        "Chronicles,Legends,Quest,Oath,Prophecy,Wanderers,Heirs,Runes",
        "Song,Crown,Kingdom,Saga,Temple,Blade",
        "Epic,Heroic,Thousand-Hour,Storyteller's",
    ),
    _genre(
        "Farming",
        "Harvest,Orchard,Homestead,Meadow,Acres,Seasons,Farmstead,Garden",
        "Valley,Barn,Fields,Vineyard,Pasture,Mill",
        "Cozy,Sunlit,Slow Sunday,Golden Harvest",
    ),
    _genre(
        "Racing",
        "Drift,Circuit,Rally,Velocity,Grand Prix,Overdrive,Slipstream,Burnout",
        "Roads,Highway,Track,Streets,Curves,Garage",
        "Full-Throttle,Pole Position,Neon,Weekend",
    ),
    _genre(
        "Horror",
        "Haunting,Whispers,Asylum,Nightfall,Dread,Possession,Revenant,Omen",
        "Cellar,House,Crypt,Mirror,Chapel,Ward",
        "Lights-Off,Midnight,Bone-Chilling,Haunted",
    ),
    _genre(
        "Puzzle",
        "Riddle,Logic,Paradox,Enigma,Mosaic,Cipher,Labyrinth,Contraption",
        "Box,Clockwork,Museum,Machine,Library,Maze",
        "Brain-Bending,Quiet Evening,Clever,Tangled",
    ),
    _genre(
        "Shooter",
        "Strike,Recoil,Firefight,Vanguard,Ballistics,Outlaws,Assault,Crossfire",
        "Trench,Arena,Siege,Bunker,Outpost,Battalion",
        "Locked and Loaded,Trigger-Happy,Relentless,Squad-Up",
    ),
    _genre(
        "Platformer",
        "Leap,Bounce,Hopper,Dash,Tumble,Springs,Vault,Scamper",
        "Rooftops,Clouds,Treetops,Ladder,Canopy,Ledges",
        "Pixel-Perfect,Jumpy,Saturday Morning,Bouncy",
    ),
    _genre(
        "Space",
        "Odyssey,Armada,Nebula,Starships,Horizon,Colonies,Expanse,Astronauts",
        "Orbit,Station,Moons,Comet,Signal,Stars",
        "Zero-Gravity,Interstellar,Deep Sky,Lightyear",
    ),
    _genre(
        "City Builder",
        "Metropolis,Boroughs,Settlers,Skylines,Founders,Mayors,Townships,Districts",
        "Bridges,City,Avenue,Plaza,Towers,Market",
        "Blueprint,Skyline,Town Hall,Ever-Growing",
    ),
    _genre(
        "Survival",
        "Castaways,Wilds,Wasteland,Scavengers,Stranded,Shelter,Endurance,Winter",
        "Island,Campfire,Tundra,Jungle,Ashes,Wreck",
        "Last-Match,Hard-Bitten,Into the Wild,Untamed",
    ),
    _genre(
        "Mystery",
        "Detective,Evidence,Alibi,Confession,Casefile,Suspects,Verdict,Clue",
        "Manor,Hotel,Train,Letter,Theatre,Lighthouse",
        "Whodunit,Rainy Night,Unsolved,Trench Coat",
    ),
    _genre(
        "Sports",
        "League,Champions,Playoffs,Manager,Slam,Tournament,Allstars,Underdogs",
        "Stadium,Court,Pitch,Trophy,Rink,Dugout",
        "Game Day,Golden Goal,Extra-Time,Hall of Fame",
    ),
    _genre(
        "Rhythm",
        "Beats,Melody,Groove,Encore,Remix,Harmony,Tempo,Chorus",
        "Stage,Jukebox,Orchestra,Festival,Ballroom,Vinyl",
        "Toe-Tapping,Encore,Backstage,Loud",
    ),
    _genre(
        "Card Game",
        "Deck,Duelists,Shuffle,Trumps,Arcana,Gamblers,Aces,Jokers",
        "Table,Tavern,Casino,Hand,Parlour,Wager",
        "One-More-Hand,Stacked,High-Stakes,Shuffled",
    ),
    _genre(
        "Seafaring",
        "Voyage,Corsairs,Tides,Mariners,Privateers,Leviathan,Flotilla,Buccaneers",
        "Harbor,Reef,Lagoon,Anchor,Galleon,Shores",
        "High-Tide,Salt-Sprayed,All-Hands,Stormy",
    ),
)

FLAVOURS = _words(
    "co-op,story rich,pixel art,open world,roguelike,hand-drawn,local multiplayer,relaxing,difficult",
    "atmospheric,retro,moddable,family friendly,choices matter,early access,great soundtrack,gamepad",
)

_STEMS = _words(
    "Iron,Star,Ember,Frost,Raven,Thorn,Silver,Shadow,Storm,Amber,Moon,Dawn,Wolf,Cinder,Crystal,Oak,Dragon",
    "Winter,Copper,Glass,Sun,Dusk,Hollow,Mist,Stone,Willow,Hawk,Cobalt,River,Velvet,Granite,Maple",
)
# Series and single games take different endings, so that no single game seems to belong to a series.
_SERIES_ENDINGS = _words(
    "vale,hold,mere,gard,haven,wick,crest,moor,reach,spire,bourne,wyn,dale,fell,mark,stead"
)
_WORLD_ENDINGS = _words(
    "fall,light,song,bound,forge,ward,bloom,drift,heart,gate,shade,rise,wind,flare,root,veil"
)
_STUDIO_ENDINGS = _words(
    "fox,bear,otter,moth,lynx,heron,badger,crow,beetle,hare,owl,newt,finch,toad,marten,wren"
)
_STUDIO_KINDS = ("Games", "Studio", "Works", "Interactive")
_ADJECTIVES = _words(
    "Last,Silent,Forgotten,Crimson,Endless,Golden,Broken,Hidden,Wandering,Burning,Frozen,Ancient,Restless",
    "Gentle,Fading,Lost,Wild,Sleeping,Shattered,Secret,Hollow,Distant,Borrowed,Emerald",
)
_THINGS = _words(
    "Embers,Echoes,Lanterns,Feathers,Ravens,Dreams,Sparrows,Shadows,Giants,Petals,Thunder,Wolves,Mirrors",
    "Lights,Secrets,Storms,Marbles,Foxes,Bells,Ghosts,Rivers,Saints,Candles,Strangers",
)

_SERIES_BUNDLES = (
    "The Complete {} Saga",
    "{} Anthology",
    "{} Starter Pack",
    "Legends of {}",
    "{} Essentials",
    "Return to {}",
    "{} Deluxe Edition",
    "The {} Trilogy and More",
)
_STUDIO_BUNDLES = (
    "Best of {}",
    "The {} Collection",
    "{} Sampler",
    "{} Anniversary Box",
    "Made by {}",
    "{} Fan Favourites",
    "{} Hidden Gems",
    "Everything {}",
)
_ROMAN = tuple(
    zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
        ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"),
        strict=True,
    )
)
_PACK_FORMS = ("Pack", "Bundle", "Collection", "Box", "Crate", "Mix")


def line_names(random: Random, count: int) -> list[str]:
    """Names of product lines: even ones are series of games, odd ones are studios."""
    series = [stem + ending for stem in _STEMS for ending in _SERIES_ENDINGS]
    studios = [f"{stem}{end} {kind}" for stem in _STEMS for end in _STUDIO_ENDINGS for kind in _STUDIO_KINDS]
    orders = [shuffled(random, np.arange(len(names))).tolist() for names in (series, studios)]
    names = []
    for line in range(count):
        choices, order = (series, orders[0]) if is_series(line) else (studios, orders[1])
        names.append(choices[order[line // 2 % len(order)]])
    return _numbered(names, "{} {roman}")


def is_series(line: int) -> bool:
    return line % 2 == 0


def game_titles(
    random: Random, genres: Sequence[int], lines: Sequence[int], names: Sequence[str]
) -> list[str]:
    """A unique title for each game, from the words of its genre; games of a series carry its name."""
    draws = zip(*(pick(random, 1 << 20, len(genres)).tolist() for _ in range(5)), strict=True)
    titles = []
    for genre, line, (pattern, a, b, c, d) in zip(genres, lines, draws, strict=True):
        words = GENRES[genre]
        noun, place = words.nouns[a % len(words.nouns)], words.places[b % len(words.places)]
        adjective, things = _ADJECTIVES[c % len(_ADJECTIVES)], _THINGS[d % len(_THINGS)]
        series = names[line] if is_series(line) else None
        if pattern % 8 < 4:
            start = series or _STEMS[c % len(_STEMS)] + _WORLD_ENDINGS[d % len(_WORLD_ENDINGS)]
            titles.append(f"{start} {noun}")
        else:
            subtitle = f"{place} of {adjective} {things}" if pattern % 8 < 7 else f"The {adjective} {noun}"
            titles.append(f"{series}: {subtitle}" if series else subtitle)
    return _numbered(titles, "{} {roman}")


def bundle_titles(
    random: Random, genres: Sequence[int], lines: Sequence[int], names: Sequence[str]
) -> list[str]:
    """A unique title for each bundle; a line of -1 is a pack that gathers a whole genre."""
    draws = zip(*(pick(random, 1 << 20, len(genres)).tolist() for _ in range(2)), strict=True)
    titles = []
    for genre, line, (a, b) in zip(genres, lines, draws, strict=True):
        if line < 0:
            words = GENRES[genre]
            titles.append(
                f"{words.moods[a % len(words.moods)]} {words.name} {_PACK_FORMS[b % len(_PACK_FORMS)]}"
            )
        else:
            forms = _SERIES_BUNDLES if is_series(line) else _STUDIO_BUNDLES
            titles.append(forms[a % len(forms)].format(names[line]))
    return _numbered(titles, "{}, Vol. {number}")


def _numbered(names: Iterable[str], form: str) -> list[str]:
    """Tell repeated names apart, as sequels are: Lantern Quest, Lantern Quest II, Lantern Quest III."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(
            form.format(name, number=seen[name], roman=_roman(seen[name])) if seen[name] > 1 else name
        )
    return unique


def _roman(number: int) -> str:
    numeral = ""
    for value, letters in _ROMAN:
        count, number = divmod(number, value)
        numeral += letters * count
    return numeral
