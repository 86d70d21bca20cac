"""The shop, filters and ranking, which together answer requests for one user or for all users."""
