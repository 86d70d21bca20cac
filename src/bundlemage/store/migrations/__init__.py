"""How a database comes from one version of the store's tables to the next. Run by `store.migrate`."""
