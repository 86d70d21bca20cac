"""From questions to answers: the shop, filters, ranking, and answers for one user or all of them."""
