"""Is a pack what it should be: files against digests, records against checksums, container against index."""
