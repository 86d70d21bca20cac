"""A model in a shop that is open: the catalogue as it is now, people with what they have at this moment."""

from bundlemage.live.published import load_published, record_of
from bundlemage.live.snapshot import Answer, HistoryKnown, Live, Question
from bundlemage.live.stock import EMPTY, Stock

__all__ = ["EMPTY", "Answer", "HistoryKnown", "Live", "Question", "Stock", "load_published", "record_of"]
