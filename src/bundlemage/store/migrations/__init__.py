"""Scripts that update the store's tables from one version to the next. `store.migrate` runs them."""
