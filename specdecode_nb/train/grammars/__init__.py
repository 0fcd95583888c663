"""Seeded document grammars, one module per prompt category."""
