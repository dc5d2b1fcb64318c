"""Plans in other people's training loops: Accelerate, Transformers, Lightning."""
