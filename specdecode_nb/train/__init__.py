"""Training of the embedded models: corpus, target, drafters."""
