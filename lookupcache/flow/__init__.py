"""How a key that is missing here becomes a value: found elsewhere, claimed, requested, published, or awaited."""
