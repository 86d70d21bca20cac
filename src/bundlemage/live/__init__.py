"""A model in a shop that is open: the catalogue and the users' histories as they are now."""

from bundlemage.live.catalogue import EMPTY, Stock
from bundlemage.live.snapshot import Live, Question, load_published, record_of

__all__ = ["EMPTY", "Live", "Question", "Stock", "load_published", "record_of"]
