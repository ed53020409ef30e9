"""Generators that are neural networks, and their training."""
