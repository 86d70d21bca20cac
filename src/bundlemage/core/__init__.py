"""From questions to answers: the shop, filters, ranking, and answers for one person or everyone."""
