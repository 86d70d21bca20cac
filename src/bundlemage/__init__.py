"""BundleMage: match bundles to users, and complete bundles for them."""
